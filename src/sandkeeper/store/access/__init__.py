"""API keys, logins and client tokens, and the audit log."""
