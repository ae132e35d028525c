"""How many sandboxes run: slots, and the line of those who wait for one."""
