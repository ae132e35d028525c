"""Container images: fetched, verified, and unpacked into one layer that sandboxes start from."""
