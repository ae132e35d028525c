"""Sessions, leases and pools for agents."""
