"""`sandkeeper doctor`: what this machine offers."""

from __future__ import annotations


def doctor() -> None:
    """Say what this machine offers to sandboxes, and how to mend what is missing."""
