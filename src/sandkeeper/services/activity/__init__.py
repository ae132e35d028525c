"""Activity of users, and the feed of committed events."""
