"""Saved files through time: list, name and compare versions."""
