"""The E2B provider, built on the official SDK."""
