"""Saved files through time: list, name, compare and restore versions."""
