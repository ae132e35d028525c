"""Templates: what sandboxes are started from, and how one is built."""
