"""Logins and client tokens that can be listed and revoked."""
