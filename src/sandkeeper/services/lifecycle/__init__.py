"""Create, pause, kill, extend and verify sandboxes, under a claim."""
