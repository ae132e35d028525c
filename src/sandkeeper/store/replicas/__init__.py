"""The processes of a keeper: their heartbeats, and what a dead one has left behind."""
