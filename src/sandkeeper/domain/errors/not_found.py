"""What a caller named does not exist."""

from __future__ import annotations

from sandkeeper.domain.errors.base import SandkeeperError


class NotFoundError(SandkeeperError, abstract=True):
    """Not found."""

    hint = "Check the id; ended records are removed after the retention time."


class SandboxNotFoundError(NotFoundError):
    """There is no sandbox with this owner."""

    hint = "Create it with PUT /api/sandboxes/{project}."


class WakeNotFoundError(NotFoundError):
    """This sandbox has not been woken yet."""

    hint = "Wake it with POST /api/sandboxes/{project}/wake."


class BudgetNotFoundError(NotFoundError):
    """There is no budget of this tenant."""

    hint = "List the budgets with GET /api/budgets."


class JobNotFoundError(NotFoundError):
    """There is no job with this id."""


class SessionNotFoundError(NotFoundError):
    """There is no session with this key."""

    hint = "Acquire the session first."


class LeaseNotFoundError(NotFoundError):
    """There is no such lease: it was released or has expired."""

    hint = "Acquire a new lease: the sandbox may have been paused since."


class TokenNotFoundError(NotFoundError):
    """There is no login or token with this id."""

    hint = "It may have expired: GET /api/logins and GET /api/client-tokens list the valid ones."


class KeyNotFoundError(NotFoundError):
    """There is no API key with this id."""

    hint = "GET /api/keys lists the valid keys; a revoked or expired one is not among them."


class SavedFileNotFoundError(NotFoundError, code="file_not_found"):
    """There is no such file among the saved files."""

    hint = "GET /api/sandboxes/{project}/files lists the saved files; check path and version."


class TaskNotFoundError(NotFoundError):
    """There is no background task with this name."""

    hint = "GET /readyz lists the background tasks."
