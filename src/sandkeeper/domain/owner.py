"""Who a sandbox exists for, and who changes it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from sandkeeper.domain.errors import InvalidRequestError


class OwnerKind(StrEnum):
    """What a sandbox exists for."""

    PROJECT = "project"
    JOB = "job"
    SESSION = "session"
    POOL = "pool"


@dataclass(frozen=True, slots=True, order=True)
class Owner:
    """The owner of a sandbox. An owner has at most one."""

    kind: OwnerKind
    id: str

    @classmethod
    def project(cls, project: str) -> Owner:
        """Return the owner of a project's sandbox."""
        return cls(OwnerKind.PROJECT, project)

    @classmethod
    def parse(cls, text: str) -> Owner:
        """Parse ``kind:id``; text without a known kind is a project's id."""
        kind, mark, rest = text.partition(":")
        if mark and kind in set(OwnerKind):
            return cls(OwnerKind(kind), rest)
        return cls.project(text)

    def __str__(self) -> str:
        return f"{self.kind}:{self.id}"

    def check_name(self) -> None:
        """Refuse the names that clients read as steps in a path: no URL could address them."""
        if self.id in {".", ".."}:
            raise InvalidRequestError("'.' and '..' are steps in a path: choose another name.")


PROVIDER_ACTOR = "provider"
"""The actor of a change that no caller of ours requested."""


SCHEDULER_ACTOR = "sandbox-idle-enforcer"
"""The actor of a pause that the idle sweep decided."""
