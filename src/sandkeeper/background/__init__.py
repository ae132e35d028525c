"""Background work: a small driver, and one file for each task."""
