"""The rules of the preview gateway: whose address it is, and what becomes of a request."""
