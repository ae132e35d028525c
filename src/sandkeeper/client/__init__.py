"""The Python client of a keeper. See docs/client.md."""

from sandkeeper.api.schemas.sandboxes import ChangeOut, Status
from sandkeeper.api.schemas.sessions import SessionAcquired
from sandkeeper.api.schemas.wakes import WakeOut
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
