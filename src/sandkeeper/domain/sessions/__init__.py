"""Sessions and leases."""
