"""Share links, own domains and the last requests of previews."""
