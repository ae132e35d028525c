"""The Python client of a keeper. See docs/client.md."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sandkeeper.api import schemas
from sandkeeper.client.blocking import Project, Sandkeeper, get_sandbox_metrics
from sandkeeper.client.connection import RetryPolicy
from sandkeeper.client.errors import (
    ClientError,
    KeeperUnreachableError,
    UnrecognizedAnswerError,
    WakeTimedOutError,
)
from sandkeeper.client.keeper import AsyncSandkeeper
from sandkeeper.client.projects import AsyncProject
from sandkeeper.client.sdk_handles import build_sdk_sandbox
from sandkeeper.domain.errors import SandkeeperError

if TYPE_CHECKING:
    from sandkeeper.api.schemas.sandboxes import ChangeOut, Status
    from sandkeeper.api.schemas.sessions import SessionAcquired
    from sandkeeper.api.schemas.wakes import WakeOut

__all__ = [
    "AsyncProject",
    "AsyncSandkeeper",
    "ChangeOut",
    "ClientError",
    "KeeperUnreachableError",
    "Project",
    "RetryPolicy",
    "Sandkeeper",
    "SandkeeperError",
    "SessionAcquired",
    "Status",
    "UnrecognizedAnswerError",
    "WakeOut",
    "WakeTimedOutError",
    "build_sdk_sandbox",
    "get_sandbox_metrics",
]


def __getattr__(name: str) -> Any:
    """Return the shape of an answer; pydantic is imported with the first one."""
    match name:
        case "ChangeOut" | "Status":
            return getattr(schemas.sandboxes, name)
        case "SessionAcquired":
            return schemas.sessions.SessionAcquired
        case "WakeOut":
            return schemas.wakes.WakeOut
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
