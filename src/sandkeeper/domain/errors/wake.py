"""A wake that failed."""

from __future__ import annotations

from sandkeeper.domain.errors.base import SandkeeperError


class WakeError(SandkeeperError, abstract=True):
    """The wake failed."""

    hint = "Try again, or rebuild the sandbox from its saved files."


class WakeFailedError(WakeError):
    """The sandbox could not be woken."""


class SandboxExpiredError(WakeError):
    """The sandbox has expired and can't be recovered."""

    hint = "Rebuild it from its saved files."


class SandboxUnreachableError(WakeError):
    """The sandbox couldn't be reached. It may be corrupted."""

    hint = "Try again, or rebuild it from its saved files."
    retryable = True


class AppNotReadyError(WakeError):
    """The sandbox runs, but its app does not answer on its port."""

    hint = "Check the app's log and its start command."
    retryable = True


class StreamNotReadyError(WakeError):
    """The desktop's live view was not ready in time."""

    hint = "It is still starting: try again in a moment, or raise `stream_ready_timeout_ms`."
    retryable = True
