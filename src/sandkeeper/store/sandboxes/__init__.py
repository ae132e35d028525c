"""Sandbox records and leaked instances."""
