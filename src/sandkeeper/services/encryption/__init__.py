"""The encryption at rest while the keeper runs."""
