"""What runs by itself: a tiny driver, and one file for each task."""
