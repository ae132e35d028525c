"""Sessions: one conversation of one user, and its sandbox for code or for a desktop.

A session is found by its key, `{user_id}:{task_id}`. It has its own id, and that id owns the
sandbox: when a sandbox is handed to another conversation, only the key changes, and the disk and
the saved files stay with the sandbox.
"""

from __future__ import annotations

import hashlib
import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

from sandkeeper.domain.errors import InvalidRequestError
from sandkeeper.domain.owner import Owner, OwnerKind
from sandkeeper.domain.policy import IdleAction, Policy

NAME_MAX: Final = 200
"""Longest user or task id. It is part of the provider's metadata and of log lines."""

SHARED_FOLDER: Final = "/home/user/conversations"
HOME_FOLDER: Final = "/home/user"


class SessionKind(StrEnum):
    """What a session's sandbox is for."""

    EXECUTION = "execution"
    """Runs code: Python, JavaScript, Bash."""

    DESKTOP = "desktop"
    """A screen with a browser that can be watched."""

    @classmethod
    def parse(cls, text: str) -> SessionKind:
        try:
            return cls(text)
        except ValueError:
            known = ", ".join(cls)
            raise InvalidRequestError(
                f"There is no kind {text[:40]!r} of session; there are: {known}."
            ) from None


class KeySource(StrEnum):
    """Where a key's task id came from."""

    TASK = "task"
    CONVERSATION = "conversation"
    GENERATED = "generated"


@dataclass(frozen=True, slots=True)
class SessionKey:
    """Whose session it is. Two keys are equal when both parts are, wherever a colon is."""

    user_id: str
    task_id: str
    source: KeySource = KeySource.TASK

    def __str__(self) -> str:
        return f"{self.user_id}:{self.task_id}"


def resolve_key(
    user_id: str, *, task_id: str | None = None, conversation_id: str | None = None
) -> SessionKey:
    """Return the explicit task id, else the conversation's (`local-…` too), else a new UUID."""
    user = _name("user id", user_id)
    if task_id:
        return SessionKey(user, _name("task id", task_id), KeySource.TASK)
    if conversation_id:
        task = _name("conversation id", conversation_id)
        return SessionKey(user, task, KeySource.CONVERSATION)
    return SessionKey(user, str(uuid.uuid4()), KeySource.GENERATED)


@dataclass(frozen=True, slots=True)
class Profile:
    """The defaults of a kind of session."""

    kind: SessionKind
    template: str
    idle_timeout_s: float
    lifetime_s: float
    code_timeout_s: float
    idle_min_s: float = 60.0
    idle_max_s: float = 1800.0
    is_adaptive: bool = False
    env: Mapping[str, str] = field(default_factory=dict)
    """Environment variables that its sandboxes always have, independent of the caller."""


@dataclass(frozen=True, slots=True)
class Session:
    """One open session.

    `home` is the id under which its sandbox is owned; a shared one has many sessions, each with its
    own `folder`.
    """

    id: str
    kind: SessionKind
    user_id: str
    task_id: str
    home: str
    folder: str
    idle_timeout_s: float
    created_at: datetime
    last_used_at: datetime
    idle_at: datetime
    uses: int = 0

    @property
    def key(self) -> SessionKey:
        return SessionKey(self.user_id, self.task_id)

    @property
    def owner(self) -> Owner:
        return Owner(OwnerKind.SESSION, self.home)

    @property
    def is_shared(self) -> bool:
        """Return True when other conversations of the user may have the same sandbox."""
        return self.home != self.id

    def used_at(self, now: datetime) -> Session:
        """Return the session after one more use; its idle time starts again."""
        idle_at = now + timedelta(seconds=self.idle_timeout_s)
        return replace(self, last_used_at=now, idle_at=idle_at, uses=self.uses + 1)


def find_shared_home(kind: SessionKind, user_id: str) -> str:
    """Return the owner of the sandbox that a user's conversations share; replicas agree on it."""
    digest = hashlib.sha256(user_id.encode()).hexdigest()
    return f"shared-{kind.value}-{digest[:24]}"


def find_folder(task_id: str) -> str:
    """Return a conversation's own folder in a shared sandbox: readable and unique."""
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", task_id).strip(".-")[:40]
    digest = hashlib.sha256(task_id.encode()).hexdigest()[:10]
    return f"{SHARED_FOLDER}/{plain}-{digest}" if plain else f"{SHARED_FOLDER}/{digest}"


def make_policy(
    *, idle_timeout_s: float, lifetime_s: float, on_idle: IdleAction, asleep_s: float
) -> Policy:
    """Return a session's policy: extend in use, end or pause when idle, keep long when paused.

    Its lease says whether it works, so the keeper does not look inside.
    """
    return Policy(
        idle_timeout_s=idle_timeout_s,
        lifetime_s=lifetime_s,
        extend_while_active=True,
        newborn_grace_s=0.0,
        woken_grace_s=0.0,
        paused_lifetime_s=asleep_s,
        on_idle=on_idle,
        work_max_s=0.0,
    )


def _name(what: str, text: str) -> str:
    if not text.strip():
        raise InvalidRequestError(f"The {what} is empty.")
    if len(text) > NAME_MAX:
        raise InvalidRequestError(
            f"The {what} has {len(text)} characters, and at most {NAME_MAX} are allowed."
        )
    if not text.isprintable():
        raise InvalidRequestError(f"The {what} has a character that cannot be printed.")
    return text
