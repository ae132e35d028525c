"""Whoever runs the sandboxes, behind one contract."""
