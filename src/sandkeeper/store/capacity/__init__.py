"""Slots, the line of those who wait for one, and what is known of each provider's limit."""
