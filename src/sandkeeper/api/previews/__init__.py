"""Share links, visits of members, own domains and the last requests of previews."""
