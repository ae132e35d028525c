"""Sandbox records and the leaks beside them."""
