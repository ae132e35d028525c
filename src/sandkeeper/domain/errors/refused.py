"""What was asked for is not possible now, or not allowed."""

from __future__ import annotations

from sandkeeper.domain.errors.base import SandkeeperError


class RefusedError(SandkeeperError, abstract=True):
    """This cannot be done now."""

    hint = "Check the sandbox's status: it lists the actions that are possible now."


class InvalidTransitionError(RefusedError):
    """Invalid state transition."""

    hint = "This is a bug in the caller; the record was not changed."


class WrongStateError(RefusedError):
    """The action is not allowed in the sandbox's current state."""


class JobNotReadyError(RefusedError):
    """The job has not reached READY."""

    hint = "Wait until the job is ready, then try again."


class SandboxBusyError(RefusedError):
    """Another operation on this sandbox is in progress."""

    hint = "Try again in a moment; an abandoned claim expires."
    retryable = True


class RegionBusyError(RefusedError):
    """Another pass of the reconciler over this region is under way."""

    hint = "Try again in a moment; what it finds is in the log and in the history."
    retryable = True


class SandboxExistsError(RefusedError):
    """The owner already has a sandbox."""

    hint = "Use the existing one, or kill it first."


class CheckpointExistsError(RefusedError):
    """Another version of the files has this name."""

    hint = "Choose another name, or delete this one first."


class CheckpointLimitError(RefusedError):
    """The project has as many checkpoints as are allowed."""

    hint = "Delete one that is no longer needed: its version is pruned like all others then."


class InstanceTakenError(RefusedError):
    """This instance belongs to another record or keeper."""

    hint = "Adopt it there, or name the keeper that no longer uses it as `fromKeeper`."


class SandboxDiskFullError(RefusedError):
    """The sandbox's disk has no space for the saved files."""

    hint = "Free space inside, or use a template with a larger disk; no saved file was lost."


class SessionLimitError(RefusedError):
    """Too many sessions are open."""

    hint = "Release a session, or raise the limit."
    retryable = True


class CapacityFullError(RefusedError):
    """As many sandboxes run as may run at a time."""

    hint = "Ask again after Retry-After: a place in line is kept for two minutes."
    retryable = True


class QuotaExceededError(RefusedError):
    """The tenant has used up its quota."""

    hint = (
        "`detail` says which, and when it is reset; an operator can raise it (`sandkeeper quota`)."
    )
    retryable = True


class SessionExistsError(RefusedError):
    """The other conversation already has a session."""

    hint = "Close that session first, or hand over to another conversation."


class KeyExistsError(RefusedError):
    """There is a valid API key with this name already."""

    hint = "Rotate that key, or choose another name."


class NotADesktopSessionError(RefusedError):
    """Only a desktop session has a screen."""

    hint = "Acquire a session with kind `desktop`."


class PolicyRefusedError(RefusedError):
    """The sandbox's policy forbids this."""

    hint = "Change the sandbox's policy, or use an action that it allows."


class BudgetSpentError(RefusedError):
    """The budget of this month is spent."""

    hint = "Raise the budget, or wait for the next month. Existing sandboxes can still be woken."


class CreditRefusedError(RefusedError):
    """The host application granted no build credit."""

    hint = "The host application's credit hook declined the rebuild."


class CreditUnavailableError(RefusedError):
    """The host application's credit hook does not answer."""

    hint = "The request is retried with the same key, so nothing is charged twice."
    retryable = True
