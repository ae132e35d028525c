"""Outbound network access of sandboxes."""
