"""Pure rules that turn observations into new records."""
