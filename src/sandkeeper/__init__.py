"""Sandkeeper."""
