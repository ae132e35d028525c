"""The runtime built on bubblewrap."""
