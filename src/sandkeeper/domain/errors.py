"""Every way in which Sandkeeper can fail. No HTTP here: ``api/errors.py`` maps errors to statuses.

A class with subclasses and no description is abstract: catch it, never raise it.

::

    SandkeeperError
    ├── NotFoundError
    │   ├── SandboxNotFoundError        no record with this owner or id
    │   ├── WakeNotFoundError           the sandbox has never been woken
    │   ├── JobNotFoundError            no job with this id
    │   ├── SessionNotFoundError        no session with this key
    │   ├── LeaseNotFoundError          no such lease, or it has expired
    │   ├── TokenNotFoundError          no such login or token
    │   ├── KeyNotFoundError            no such API key
    │   ├── SavedFileNotFoundError      no such file or version among the saved files
    │   └── TaskNotFoundError           no background task with this name
    ├── RefusedError
    │   ├── InvalidTransitionError      not in the table of state transitions
    │   ├── WrongStateError             the action is not allowed in the current state
    │   ├── JobNotReadyError            the job has not reached READY
    │   ├── SandboxBusyError            another operation holds the claim
    │   ├── SandboxExistsError          the owner already has a sandbox
    │   ├── InstanceTakenError          the instance belongs to another record or keeper
    │   ├── SandboxDiskFullError        no space inside for the saved files
    │   ├── SessionLimitError           too many open sessions
    │   ├── SessionExistsError          the conversation already has a session
    │   ├── KeyExistsError              a valid API key has this name
    │   ├── NotADesktopSessionError     only a desktop session has a screen
    │   ├── PolicyRefusedError          the sandbox's policy forbids it
    │   ├── CreditRefusedError          the host application granted no credit
    │   └── CreditUnavailableError      the host application's credit hook does not answer
    ├── InputError
    │   ├── InvalidRequestError         the request is invalid
    │   ├── PayloadTooLargeError        the body is over its limit
    │   ├── IdempotencyMismatchError    same key, different body
    │   └── IdempotencyInFlightError    same key, first request still running
    ├── AccessError
    │   ├── UnauthenticatedError        no key, or a wrong one
    │   ├── ForbiddenError              the key does not allow this
    │   ├── InvalidSignatureError       a webhook that the provider did not sign
    │   └── IdentityProviderUnavailableError  where people sign in: it does not answer
    ├── ProviderError
    │   ├── InstanceGoneError           definitive: the provider does not have it
    │   ├── ProviderUnavailableError    transient: timeout, network, 5xx, breaker open
    │   │   ├── OutcomeUnknownError     a pause or kill whose reply was lost
    │   │   └── ResumeFailedError       the provider's own 500 to a resume
    │   ├── ProviderRateLimitedError    transient: slow down, ``retry_after_s`` says how much
    │   ├── ProviderUnauthorizedError   configuration: the provider refuses our key
    │   ├── ProviderUnsupportedError    this provider or plan does not support it
    │   │   └── CaptureUnsupportedError its files cannot be captured: too many, or no tools
    │   ├── ProviderRefusedError        definitive: the provider rejected the request
    │   └── ProviderAmbiguousError      a response that cannot be interpreted
    ├── WakeError
    │   ├── WakeFailedError             a wake that failed with a code unknown to this version
    │   ├── SandboxExpiredError         the paused sandbox no longer exists
    │   ├── SandboxUnreachableError     it exists and does not come up
    │   ├── AppNotReadyError            it runs and its port does not answer
    │   └── StreamNotReadyError         it runs and its screen cannot be streamed yet
    ├── StoreError
    │   ├── VersionConflictError        the row changed since it was read
    │   ├── StoreUnavailableError       the database cannot be reached
    │   ├── SchemaMismatchError         the database needs ``sandkeeper db upgrade``
    │   ├── SchemaTooNewError           a newer version has upgraded the database
    │   ├── FilesUnavailableError       the storage of the saved files cannot be reached
    │   └── FilesDamagedError           saved content is missing or does not match its hash
    └── InvalidSettingsError            a setting is missing or invalid

The first line of a class's docstring is its default message, ``hint`` says what to do next, and
``retryable`` says whether the same call may succeed later. ``code`` is the class name in snake case
without ``Error``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import ClassVar, Final

# "NotADesktop" → Not, A, Desktop.
_WORD_START: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


class SandkeeperError(Exception):
    """Something went wrong in Sandkeeper."""

    code: ClassVar[str]
    """Stable name on the wire. Only concrete classes have one."""
    hint: ClassVar[str] = "Search the server's log for the request id."
    retryable: ClassVar[bool] = False
    is_abstract: ClassVar[bool] = True
    """True for a class that only groups others: it can be caught, not raised."""

    def __init_subclass__(
        cls, *, abstract: bool = False, code: str | None = None, **kwargs: object
    ) -> None:
        """Derive the code from the class name; ``code`` is for a name that a builtin has taken."""
        super().__init_subclass__(**kwargs)
        cls.is_abstract = abstract
        if not abstract:
            name = cls.__name__.removesuffix("Error")
            cls.code = code or _WORD_START.sub("_", name).lower()

    def __init__(self, message: str | None = None, **fields: object) -> None:
        if self.is_abstract:
            raise TypeError(f"{type(self).__name__} is abstract: raise one of its subclasses.")
        self.message = message or (type(self).__doc__ or "").splitlines()[0]
        self.fields: dict[str, object] = fields
        super().__init__(self.message)

    def __str__(self) -> str:
        """Return the message with its fields, for logs."""
        if not self.fields:
            return self.message
        facts = ", ".join(f"{name}={value}" for name, value in sorted(self.fields.items()))
        return f"{self.message} ({facts})"

    @property
    def retry_after_s(self) -> float | None:
        """Return the seconds after which a retry makes sense, if known."""
        value = self.fields.get("retry_after_s")
        return float(value) if isinstance(value, int | float) else None

    @classmethod
    def walk(cls) -> Iterator[type[SandkeeperError]]:
        """Yield every concrete class of this branch, parents first."""
        if not cls.is_abstract:
            yield cls
        for child in cls.__subclasses__():
            yield from child.walk()


class NotFoundError(SandkeeperError, abstract=True):
    """Not found."""

    hint = "Check the id; ended records are removed after the retention time."


class SandboxNotFoundError(NotFoundError):
    """There is no sandbox with this owner."""

    hint = "Create it with PUT /api/sandboxes/{project}."


class WakeNotFoundError(NotFoundError):
    """This sandbox has not been woken yet."""

    hint = "Wake it with POST /api/sandboxes/{project}/wake."


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


class SandboxExistsError(RefusedError):
    """The owner already has a sandbox."""

    hint = "Use the existing one, or kill it first."


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


class CreditRefusedError(RefusedError):
    """The host application granted no build credit."""

    hint = "The host application's credit hook declined the rebuild."


class CreditUnavailableError(RefusedError):
    """The host application's credit hook does not answer."""

    hint = "The request is retried with the same key, so nothing is charged twice."
    retryable = True


class InputError(SandkeeperError, abstract=True):
    """Invalid input."""

    hint = "Correct the request: `detail` says what is wrong."


class InvalidRequestError(InputError):
    """The request is invalid."""


class PayloadTooLargeError(InputError):
    """The request body is too large."""

    hint = "Split the request into smaller ones."


class IdempotencyMismatchError(InputError):
    """This Idempotency-Key was used with a different body."""

    hint = "Use a new key for a new request."


class IdempotencyInFlightError(InputError):
    """A request with this Idempotency-Key is still in progress."""

    hint = "Wait a moment and send the same request again."
    retryable = True


class AccessError(SandkeeperError, abstract=True):
    """Access denied."""

    hint = "Send a valid key as `Authorization: Bearer …`."


class UnauthenticatedError(AccessError):
    """A valid key is required."""


class ForbiddenError(AccessError):
    """This key does not allow that."""

    hint = "Use the operator key, or a token of this owner."


class InvalidSignatureError(AccessError):
    """The webhook's signature is invalid."""

    hint = "Compare the secret registered with the provider (`sandkeeper webhook list`)."


class IdentityProviderUnavailableError(AccessError):
    """The identity provider cannot be used now."""

    hint = "Try again later, or sign in with a key."
    retryable = True


class ProviderError(SandkeeperError, abstract=True):
    """The provider failed."""

    hint = "Run `sandkeeper doctor`."


class InstanceGoneError(ProviderError):
    """The provider no longer has this instance."""

    hint = "Wake the sandbox to create a new one with its files."


class ProviderUnavailableError(ProviderError):
    """The provider cannot be reached."""

    hint = "Try again when the provider answers; until then the state shown may be old."
    retryable = True


class OutcomeUnknownError(ProviderUnavailableError):
    """The provider did not say whether it was done, and cannot be asked now."""

    hint = "The state is shown as soon as the provider answers; nothing is done twice."
    retryable = True


class ResumeFailedError(ProviderUnavailableError):
    """The provider says that it could not resume the sandbox."""

    hint = "A wake tries again, and then starts the sandbox from its disk alone."


class ProviderRateLimitedError(ProviderError):
    """The provider asks us to slow down."""

    hint = "Sandkeeper retries after the delay that the provider asked for."
    retryable = True


class ProviderUnauthorizedError(ProviderError):
    """The provider rejected our API key."""

    hint = "Check E2B_API_KEY and restart."


class ProviderUnsupportedError(ProviderError):
    """This provider or plan does not support that."""


class CaptureUnsupportedError(ProviderUnsupportedError):
    """The sandbox's files cannot be captured: there are too many, or the capture failed inside."""

    hint = "`detail` says why; list files that need no saving in .sandkeeperignore."


class ProviderRefusedError(ProviderError):
    """The provider rejected the request."""

    hint = "`detail` has the provider's message."


class ProviderAmbiguousError(ProviderError):
    """The provider sent a response that cannot be interpreted."""

    hint = "The response is in the log; the sandbox is UNKNOWN until it can be verified."
    retryable = True


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


class StoreError(SandkeeperError, abstract=True):
    """The store failed."""

    hint = "Run `sandkeeper doctor`."


class VersionConflictError(StoreError):
    """The record changed since it was read."""

    hint = "Read the record again and repeat the request."
    retryable = True


class StoreUnavailableError(StoreError):
    """The database cannot be reached."""

    retryable = True


class SchemaMismatchError(StoreError):
    """The database schema does not match this version."""

    hint = "Run `sandkeeper db upgrade`."


class SchemaTooNewError(StoreError):
    """A newer version of Sandkeeper has upgraded this database."""

    hint = "Run the newer version, or let it downgrade the schema with `sandkeeper db downgrade`."


class FilesUnavailableError(StoreError):
    """The storage of the saved files cannot be reached."""

    hint = "The last good version is intact; check `files_url` and try again."
    retryable = True


class FilesDamagedError(StoreError):
    """Saved content is missing or does not match its hash."""

    hint = "Restore the folder or bucket of the saved files from its backup."


class InvalidSettingsError(SandkeeperError):
    """A setting is missing or invalid."""

    hint = "Check `sandkeeper config show` and docs/settings.md."
