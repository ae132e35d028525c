"""Sandboxes of the engine: records, lifecycle, events and recovery."""
