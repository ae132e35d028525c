"""Sessions, leases, pools and usage history."""
