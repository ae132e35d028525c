"""What sandboxes cost: usage counted from the event log, and prices."""
