"""The shapes of logins and client tokens."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints, model_validator

from sandkeeper.api.schemas.base import ApiModel, Name, OwnerOut, RequestModel
from sandkeeper.domain.access import NAME_PATTERN

RoleName = Literal["operator", "editor", "viewer", "client"]


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


class SignInProvider(ApiModel):
    """An identity provider, and the page of ours that leads to it."""

    name: str
    path: str


class SignIn(ApiModel):
    """How people sign in besides with a key."""

    provider: SignInProvider | None


class Token(ApiModel):
    token: str
    expires_at: datetime


class Me(ApiModel):
    """Who the caller is, and what may be done with the key that was sent."""

    role: RoleName
    name: str
    """The key or the person, as the logs name it."""
    prefix: str | None
    """The projects that an editor is limited to begin with it."""
    owner: OwnerOut | None


class ClientToken(Token):
    """A client token, which is shown this once, and the id by which it can be revoked."""

    id: str


class Login(ApiModel):
    """A login to the dashboard that is good now."""

    id: str
    role: Literal["operator", "editor", "viewer"]
    holder: str
    """The key or the person who signed in."""
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
    issued_by: str
    issued_at: datetime
    expires_at: datetime


class ListedTokenPage(ApiModel):
    items: list[ListedToken]
    next_cursor: str | None


Seconds = Annotated[int, Field(ge=1, le=10 * 366 * 86400)]


class KeyRequest(RequestModel):
    """A named key with a scope: `read`, `operate`, `operate:PREFIX` or `admin`."""

    name: Annotated[str, StringConstraints(pattern=NAME_PATTERN)]
    scope: Annotated[str, StringConstraints(max_length=200)]
    expires_in_s: Seconds | None = None


class KeyRotation(RequestModel):
    """How long the old key stays valid beside the new one, and when the new one expires."""

    overlap_s: int = Field(default=86400, ge=0, le=90 * 86400)
    expires_in_s: Seconds | None = None


class KeyOut(ApiModel):
    """A key that is valid now, without its text."""

    id: str
    name: str
    scope: str
    created_at: datetime
    created_by: str
    expires_at: datetime | None


class KeyList(ApiModel):
    items: list[KeyOut]


class NewKey(KeyOut):
    """A key with its text, which is shown this once."""

    key: str


class AuditEntryOut(ApiModel):
    """Who did what, from which address."""

    at: datetime
    actor: str
    action: str
    subject: str
    address: str
    data: dict[str, Any]


class AuditPage(ApiModel):
    items: list[AuditEntryOut]
    next_cursor: str | None
