"""Commands for sandboxes."""
