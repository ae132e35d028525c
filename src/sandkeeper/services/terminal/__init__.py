"""Shells in sandboxes, for people."""
