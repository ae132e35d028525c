"""What runs, what it costs, and how much of both may be."""
