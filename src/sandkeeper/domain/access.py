"""Named API keys with a scope, and the audit log of who got in and what they changed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, Final

from sandkeeper.domain.errors import InvalidRequestError

NAME_PATTERN: Final = r"^[A-Za-z0-9][A-Za-z0-9._@-]{0,62}$"
_PREFIX: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@/-]{0,99}")


class Right(StrEnum):
    """What a scope allows."""

    READ = "read"
    """Read everything."""
    OPERATE = "operate"
    """Also create, wake, pause and end sandboxes, and write their files."""
    ADMIN = "admin"
    """Also keys, tokens, logins, webhooks, switches and tasks."""


@dataclass(frozen=True, slots=True)
class Scope:
    """A right, and for `operate` optionally the prefix of the projects that it is limited to."""

    right: Right
    prefix: str | None = None

    @classmethod
    def parse(cls, text: str) -> Scope:
        """Return the scope of `read`, `operate`, `operate:PREFIX` or `admin`."""
        name, colon, prefix = text.partition(":")
        if name not in set(Right) or (colon and name != Right.OPERATE):
            raise InvalidRequestError(
                f"{text[:80]!r} is not a scope: use read, operate, operate:PREFIX or admin."
            )
        if colon and not _PREFIX.fullmatch(prefix):
            raise InvalidRequestError(f"{prefix[:80]!r} is not a prefix of project names.")
        return cls(Right(name), prefix or None)

    def __str__(self) -> str:
        return f"{self.right.value}:{self.prefix}" if self.prefix else self.right.value


@dataclass(frozen=True, slots=True)
class ApiKey:
    """One key. Only the SHA-256 of its text is stored."""

    id: str
    name: str
    scope: Scope
    digest: str
    created_at: datetime
    created_by: str
    expires_at: datetime | None = None
    revoked_at: datetime | None = None

    def is_valid(self, now: datetime) -> bool:
        return self.revoked_at is None and (self.expires_at is None or now < self.expires_at)


class AuditAction(StrEnum):
    """What the audit log records. Lifecycle verbs are in the event log, with the same actors."""

    LOGIN = "login"
    LOGIN_FAILED = "login_failed"
    LOGOUT = "logout"
    LOGIN_REVOKED = "login_revoked"
    TOKEN_ISSUED = "token_issued"  # noqa: S105
    TOKEN_REVOKED = "token_revoked"  # noqa: S105
    KEY_CREATED = "key_created"
    KEY_ROTATED = "key_rotated"
    KEY_REVOKED = "key_revoked"
    LINK_CREATED = "link_created"
    LINK_REVOKED = "link_revoked"
    DOMAIN_ADDED = "domain_added"
    DOMAIN_REMOVED = "domain_removed"
    FILES_WRITTEN = "files_written"
    FILES_DELETED = "files_deleted"
    FILES_RESTORED = "files_restored"
    PROJECT_FORKED = "project_forked"
    TERMINAL_OPENED = "terminal_opened"
    CHECKPOINT_ADDED = "checkpoint_added"
    CHECKPOINT_REMOVED = "checkpoint_removed"


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """One line of the audit log: who did what to which subject, from which address."""

    at: datetime
    actor: str
    action: AuditAction
    subject: str
    address: str = ""
    data: Mapping[str, Any] = field(default_factory=dict)
    number: int = 0
    """Its position in the log, assigned by the database."""
