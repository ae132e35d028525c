"""The shapes of logins and client tokens."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from pydantic import Field, StringConstraints, model_validator

from sandkeeper.api.schemas.base import ApiModel, Name, OwnerOut, RequestModel

RoleName = Literal["operator", "viewer", "client"]


class ClientTokenRequest(RequestModel):
    """A short-lived token for a browser, good for one owner only."""

    project: Name
    kind: Literal["project", "job", "session"] = "project"
    ttl_s: int | None = Field(default=None, ge=1)


class LoginRequest(RequestModel):
    """A key or a login code in exchange for a cookie that scripts cannot read: one of the two."""

    key: Annotated[str, StringConstraints(max_length=512)] = ""
    code: Annotated[str, StringConstraints(max_length=1024)] = ""

    @model_validator(mode="after")
    def _is_one_of_two(self) -> LoginRequest:
        if bool(self.key) == bool(self.code):
            raise ValueError("give either a key or a login code")
        return self


class Token(ApiModel):
    token: str
    expires_at: datetime


class Me(ApiModel):
    """Who the caller is, and what may be done with the key that was sent."""

    role: RoleName
    owner: OwnerOut | None


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
