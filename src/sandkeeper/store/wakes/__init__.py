"""Wakes, prewarms and jobs."""
