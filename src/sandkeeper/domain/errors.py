"""Every way in which Sandkeeper can fail. No HTTP here: ``api/errors.py`` has the one table.

::

    SandkeeperError
    ├── NotFoundError
    │   ├── SandboxNotFoundError        no record of this owner or id
    │   ├── JobNotFoundError            no job of this id
    │   ├── SessionNotFoundError        no session of this key
    │   ├── LeaseNotFoundError          no such lease, or it has run out
    │   ├── TokenNotFoundError          no such login or token
    │   └── FileNotKeptError            no such file among the kept ones
    ├── RefusedError
    │   ├── InvalidTransitionError      the table of states has no such move
    │   ├── WrongStateError             the action does not fit the present state
    │   ├── JobNotReadyError            the job has not reached READY
    │   ├── SandboxBusyError            somebody else holds the claim
    │   ├── SandboxExistsError          the owner has a sandbox already
    │   ├── SandboxDiskFullError        no room inside for the kept files
    │   ├── SessionLimitError           too many sessions
    │   ├── SessionExistsError          the conversation has a session already
    │   ├── SessionKindError            this kind of session has no screen
    │   ├── PolicyRefusedError          the sandbox's own policy forbids it
    │   ├── CreditRefusedError          the host application granted no credit
    │   └── CreditUnavailableError      the host application cannot be asked for a credit
    ├── InputError
    │   ├── InvalidRequestError         the request says something impossible
    │   ├── PayloadTooLargeError        the body is over its bound
    │   ├── IdempotencyMismatchError    same key, other body
    │   └── IdempotencyInFlightError    same key, first call not answered yet
    ├── AccessError
    │   ├── UnauthenticatedError        no key, or a wrong one
    │   ├── ForbiddenError              the key may not do this
    │   └── InvalidSignatureError       a webhook that is not from the provider
    ├── ProviderError
    │   ├── InstanceGoneError           definitive: the provider does not have it
    │   ├── ProviderUnavailableError    transient: timeout, network, 5xx, breaker open
    │   ├── ProviderRateLimitedError    transient: slow down, ``retry_after_s`` says how much
    │   ├── ProviderUnauthorizedError   configuration: the provider refuses our key
    │   ├── ProviderUnsupportedError    this provider or plan cannot do it
    │   │   └── CaptureUnsupportedError its files cannot be kept: too many, or no tools
    │   ├── ProviderRefusedError        definitive: the provider calls the request wrong
    │   └── ProviderAmbiguousError      an answer that nobody understands
    ├── WakeError
    │   ├── SandboxExpiredError         the paused sandbox no longer exists
    │   ├── SandboxUnreachableError     it exists, and does not come up
    │   ├── AppNotReadyError            it runs, and its port does not answer
    │   └── StreamNotReadyError         it runs, and its screen cannot be watched yet
    ├── StoreError
    │   ├── VersionConflictError        the row changed since it was read
    │   ├── StoreUnavailableError       the database cannot be reached
    │   ├── SchemaMismatchError         the database needs ``sandkeeper db upgrade``
    │   ├── FilesUnavailableError       the place of the kept files cannot be reached
    │   └── FilesDamagedError           a kept content is not what it was
    └── SettingsError                   a setting is missing or impossible

A class's docstring is its default message; ``hint`` says what to do next; ``retryable`` says
whether the same call may succeed later; ``code`` is the class name in snake case without ``Error``.
"""

from __future__ import annotations

import re
from typing import ClassVar


class SandkeeperError(Exception):
    """Something went wrong in Sandkeeper."""

    code: ClassVar[str] = "sandkeeper"
    hint: ClassVar[str] = "Look at the server's log for the request id."
    retryable: ClassVar[bool] = False

    def __init_subclass__(cls, **kwargs: object) -> None:
        """Derives the stable code from the class name, so that the two cannot drift apart."""
        super().__init_subclass__(**kwargs)
        name = cls.__name__.removesuffix("Error")
        cls.code = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()

    def __init__(self, message: str | None = None, **fields: object) -> None:
        self.message = message or (type(self).__doc__ or "").splitlines()[0]
        self.fields: dict[str, object] = fields
        super().__init__(self.message)

    def __str__(self) -> str:
        """The message with its fields, for logs."""
        if not self.fields:
            return self.message
        facts = ", ".join(f"{name}={value}" for name, value in sorted(self.fields.items()))
        return f"{self.message} ({facts})"

    @property
    def retry_after_s(self) -> float | None:
        """Seconds after which a retry makes sense, when somebody said so."""
        value = self.fields.get("retry_after_s")
        return float(value) if isinstance(value, int | float) else None


class NotFoundError(SandkeeperError):
    """There is no such thing here."""

    hint = "Check the id; ended records are removed after the retention time."


class SandboxNotFoundError(NotFoundError):
    """There is no sandbox of this owner."""

    hint = "Create it with PUT /api/sandboxes/{project}."


class JobNotFoundError(NotFoundError):
    """There is no job of this id."""


class SessionNotFoundError(NotFoundError):
    """There is no session of this key."""

    hint = "Acquire the session first."


class LeaseNotFoundError(NotFoundError):
    """There is no such lease; it was given back or has run out."""

    hint = "Acquire again: the sandbox may have gone to sleep since."


class TokenNotFoundError(NotFoundError):
    """There is no login or token of this id."""

    hint = (
        "It may have expired; GET /api/logins and GET /api/client-tokens list those that are good."
    )


class FileNotKeptError(NotFoundError):
    """This file is not among the kept ones."""


class RefusedError(SandkeeperError):
    """This cannot be done now."""

    hint = "Look at the sandbox's state and try what its actions offer."


class InvalidTransitionError(RefusedError):
    """The table of states has no such move."""

    hint = "This is a bug in the caller; the record was left as it was."


class WrongStateError(RefusedError):
    """The action does not fit the sandbox's present state."""


class JobNotReadyError(RefusedError):
    """The job has not reached READY."""

    hint = "Wait until the job is ready, then try again."


class SandboxBusyError(RefusedError):
    """Another operation on this sandbox is under way."""

    hint = "Try again in a moment; an abandoned claim ends by itself."
    retryable = True


class SandboxExistsError(RefusedError):
    """The owner has a sandbox already."""

    hint = "Use the existing one, or kill it first."


class SandboxDiskFullError(RefusedError):
    """The sandbox's disk has no room for the kept files."""

    hint = "Free some space inside, or take a template with a larger disk; nothing kept was lost."


class SessionLimitError(RefusedError):
    """Too many sessions are open."""

    hint = "Release a session, or raise the limit."
    retryable = True


class SessionExistsError(RefusedError):
    """The other conversation has a session already."""

    hint = "Close that one first, or hand over to another conversation."


class SessionKindError(RefusedError):
    """This kind of session has no screen to watch."""

    hint = "Acquire a session of the kind desktop."


class PolicyRefusedError(RefusedError):
    """The sandbox's policy forbids this."""


class CreditRefusedError(RefusedError):
    """The host application granted no build credit."""

    hint = "The host application's credit hook decides about rebuilds."


class CreditUnavailableError(RefusedError):
    """The host application could not be asked for a build credit."""

    hint = "It is asked again by itself with the same key, so that nothing is charged twice."
    retryable = True


class InputError(SandkeeperError):
    """The request is wrong."""

    hint = "Correct the request; the detail says what is wrong."


class InvalidRequestError(InputError):
    """The request says something impossible."""


class PayloadTooLargeError(InputError):
    """The body is larger than allowed."""

    hint = "Send less at once."


class IdempotencyMismatchError(InputError):
    """This Idempotency-Key was used with another body."""

    hint = "Take a new key for a new request."


class IdempotencyInFlightError(InputError):
    """A request with this Idempotency-Key is still being worked on."""

    hint = "Wait a moment and send the same request again."
    retryable = True


class AccessError(SandkeeperError):
    """Access was refused."""

    hint = "Send a valid key as `Authorization: Bearer …`."


class UnauthenticatedError(AccessError):
    """A valid key is needed."""


class ForbiddenError(AccessError):
    """This key may not do that."""

    hint = "Use the operator key, or a token of this owner."


class InvalidSignatureError(AccessError):
    """The webhook's signature is not valid."""

    hint = "Compare the secret registered at the provider with ours (`sandkeeper webhook list`)."


class ProviderError(SandkeeperError):
    """The provider could not do it."""

    hint = "See `sandkeeper doctor`."


class InstanceGoneError(ProviderError):
    """The provider no longer has this instance."""

    hint = "Wake the sandbox to create a new one with its files."


class ProviderUnavailableError(ProviderError):
    """The provider cannot be reached."""

    hint = "Nothing was changed; it is tried again by itself."
    retryable = True


class ProviderRateLimitedError(ProviderError):
    """The provider asks us to slow down."""

    hint = "It is tried again after the time that the provider named."
    retryable = True


class ProviderUnauthorizedError(ProviderError):
    """The provider refuses our API key."""

    hint = "Check E2B_API_KEY and restart."


class ProviderUnsupportedError(ProviderError):
    """This provider or plan cannot do that."""


class CaptureUnsupportedError(ProviderUnsupportedError):
    """The sandbox's files cannot be kept: there are too many, or the work inside failed."""

    hint = "The detail says why; name what need not be kept in .sandkeeperignore."


class ProviderRefusedError(ProviderError):
    """The provider calls the request wrong."""

    hint = "The detail has the provider's own words."


class ProviderAmbiguousError(ProviderError):
    """The provider gave an answer that is not understood."""

    hint = "The answer is in the log; the sandbox counts as UNKNOWN until it can be verified."
    retryable = True


class WakeError(SandkeeperError):
    """The sandbox could not be woken."""

    hint = "Try again, or rebuild from the kept files."


class SandboxExpiredError(WakeError):
    """The sandbox has expired and can't be recovered."""

    hint = "Rebuild it from the kept files."


class SandboxUnreachableError(WakeError):
    """The sandbox couldn't be reached. It may be corrupted."""

    hint = "Try again, or rebuild it from the kept files."
    retryable = True


class AppNotReadyError(WakeError):
    """The sandbox runs, but its app does not answer on its port."""

    hint = "Look at the app's log and its start command."
    retryable = True


class StreamNotReadyError(WakeError):
    """The desktop's live view was not ready in time."""

    hint = "It goes on starting: ask again in a moment, or raise `stream_ready_timeout_ms`."
    retryable = True


class StoreError(SandkeeperError):
    """The database could not do it."""

    hint = "See `sandkeeper doctor`."


class VersionConflictError(StoreError):
    """The record changed since it was read."""

    hint = "Read it again and decide anew."
    retryable = True


class StoreUnavailableError(StoreError):
    """The database cannot be reached."""

    retryable = True


class SchemaMismatchError(StoreError):
    """The database has another schema than this version needs."""

    hint = "Run `sandkeeper db upgrade`."


class FilesUnavailableError(StoreError):
    """The place of the kept files cannot be reached."""

    hint = "The last good version is intact; check `files_url` and try again."
    retryable = True


class FilesDamagedError(StoreError):
    """A kept content is missing or is not what it was."""

    hint = "Restore the folder or bucket of the kept files from its backup."


class SettingsError(SandkeeperError):
    """A setting is missing or impossible."""

    hint = "See `sandkeeper config show` and docs/settings.md."
