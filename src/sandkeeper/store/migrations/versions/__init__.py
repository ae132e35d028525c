"""One file per schema version, numbered in order."""
