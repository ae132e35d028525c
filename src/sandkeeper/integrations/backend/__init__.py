"""A sandbox as an agent's workspace, in the cloud or local. See docs/backend.md."""

from sandkeeper.integrations.backend.contract import (
    Backend,
    BackendConfig,
    CommandOutput,
    FileInfo,
    Repository,
)
from sandkeeper.integrations.backend.e2b import E2BBackend
from sandkeeper.integrations.backend.errors import (
    AgentSetupFailedError,
    BackendError,
    BackendNotReadyError,
    CloneFailedError,
    CommandError,
    CommandFailedError,
    CommandTimedOutError,
    NoSuchFileError,
    OutputTooLongError,
)
from sandkeeper.integrations.backend.factory import connect_backend, create_backend
from sandkeeper.integrations.backend.local import LocalBackend

__all__ = [
    "AgentSetupFailedError",
    "Backend",
    "BackendConfig",
    "BackendError",
    "BackendNotReadyError",
    "CloneFailedError",
    "CommandError",
    "CommandFailedError",
    "CommandOutput",
    "CommandTimedOutError",
    "E2BBackend",
    "FileInfo",
    "LocalBackend",
    "NoSuchFileError",
    "OutputTooLongError",
    "Repository",
    "connect_backend",
    "create_backend",
]
