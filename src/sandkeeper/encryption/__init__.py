"""Encryption at rest: master keys wrap data keys, and data keys encrypt values and packs."""
