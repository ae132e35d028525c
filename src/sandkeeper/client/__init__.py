"""What host applications import to use a keeper. See docs/client.md."""

from sandkeeper.api.schemas.sandboxes import Change, Status
from sandkeeper.api.schemas.sessions import SessionAcquired
from sandkeeper.api.schemas.wakes import Wake
from sandkeeper.client.blocking import Project, Sandkeeper, get_sandbox_metrics
from sandkeeper.client.connection import Patience
from sandkeeper.client.errors import (
    ClientError,
    KeeperUnreachableError,
    UnrecognizedAnswerError,
    WakeTimedOutError,
)
from sandkeeper.client.keeper import AsyncSandkeeper
from sandkeeper.client.projects import AsyncProject
from sandkeeper.client.sdk_handles import make_native
from sandkeeper.domain.errors import SandkeeperError

__all__ = [
    "AsyncProject",
    "AsyncSandkeeper",
    "Change",
    "ClientError",
    "KeeperUnreachableError",
    "Patience",
    "Project",
    "Sandkeeper",
    "SandkeeperError",
    "SessionAcquired",
    "Status",
    "UnrecognizedAnswerError",
    "Wake",
    "WakeTimedOutError",
    "get_sandbox_metrics",
    "make_native",
]
