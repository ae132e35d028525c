"""Bring a sandbox back with its files and its app."""
