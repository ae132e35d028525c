"""The records of dashboard logins and client tokens.

Each has an id, which its signed form carries, so that one can be listed and revoked alone. The
signed form itself is never stored.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from sandkeeper.domain.owner import Owner


class TokenUse(StrEnum):
    """What a token gives access to."""

    LOGIN = "login"
    """The dashboard, as the holder of a key."""
    CLIENT = "client"
    """One owner's sandbox, from a browser."""
    LINK = "link"
    """One preview, from any browser that has the share link."""


@dataclass(frozen=True, slots=True)
class IssuedToken:
    """One token. A login has a role, a client token has an owner."""

    id: str
    use: TokenUse
    issued_at: datetime
    expires_at: datetime
    role: str = ""
    holder: str = ""
    """The actor who signed in, or who issued it."""
    owner: Owner | None = None
    number: int = 0
    """Its position in the list, assigned by the database."""
