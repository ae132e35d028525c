"""The providers that run the sandboxes, behind one contract."""
