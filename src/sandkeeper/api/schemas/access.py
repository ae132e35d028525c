"""The shapes of logins and client tokens."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from sandkeeper.api.schemas.base import ApiModel
from sandkeeper.api.schemas.sandboxes import Token


class ClientToken(Token):
    """A client token, which is shown this once, and the id by which it can be revoked."""

    id: str


class Login(ApiModel):
    """A login to the dashboard that is good now."""

    id: str
    role: Literal["operator", "viewer"]
    issued_at: datetime
    expires_at: datetime
    current: bool
    """Whether the caller came with this one."""


class LoginPage(ApiModel):
    items: list[Login]
    next_cursor: str | None


class ListedToken(ApiModel):
    """A client token that is good now, and whose sandbox it is good for."""

    id: str
    project: str
    issued_at: datetime
    expires_at: datetime


class ListedTokenPage(ApiModel):
    items: list[ListedToken]
    next_cursor: str | None
