"""Every way in which Sandkeeper can fail. No HTTP here: ``api/errors.py`` maps errors to statuses.

Each branch of the tree has a module; import from here. A class with subclasses and no description
is abstract: catch it, never raise it.

::

    SandkeeperError
    ├── NotFoundError
    │   ├── SandboxNotFoundError        no record with this owner or id
    │   ├── WakeNotFoundError           the sandbox has never been woken
    │   ├── BudgetNotFoundError         no budget of this tenant
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
    │   ├── RegionBusyError             another pass of the reconciler is under way
    │   ├── SandboxExistsError          the owner already has a sandbox
    │   ├── CheckpointExistsError       another version of the files has this name
    │   ├── CheckpointLimitError        the project has as many checkpoints as are allowed
    │   ├── InstanceTakenError          the instance belongs to another record or keeper
    │   ├── SandboxDiskFullError        no space inside for the saved files
    │   ├── SessionLimitError           too many open sessions
    │   ├── CapacityFullError           as many sandboxes run as may run at a time
    │   ├── QuotaExceededError          the tenant has used up its quota
    │   ├── SessionExistsError          the conversation already has a session
    │   ├── KeyExistsError              a valid API key has this name
    │   ├── NotADesktopSessionError     only a desktop session has a screen
    │   ├── PolicyRefusedError          the sandbox's policy forbids it
    │   ├── BudgetSpentError            the tenant's budget of this month is spent
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
    │   ├── ProviderFullError           the provider lets no more run at a time
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

from sandkeeper.domain.errors.access import (
    AccessError,
    ForbiddenError,
    IdentityProviderUnavailableError,
    InvalidSignatureError,
    UnauthenticatedError,
)
from sandkeeper.domain.errors.base import (
    InvalidSettingsError,
    SandkeeperError,
)
from sandkeeper.domain.errors.not_found import (
    BudgetNotFoundError,
    JobNotFoundError,
    KeyNotFoundError,
    LeaseNotFoundError,
    NotFoundError,
    SandboxNotFoundError,
    SavedFileNotFoundError,
    SessionNotFoundError,
    TaskNotFoundError,
    TokenNotFoundError,
    WakeNotFoundError,
)
from sandkeeper.domain.errors.provider import (
    CaptureUnsupportedError,
    InstanceGoneError,
    OutcomeUnknownError,
    ProviderAmbiguousError,
    ProviderError,
    ProviderFullError,
    ProviderRateLimitedError,
    ProviderRefusedError,
    ProviderUnauthorizedError,
    ProviderUnavailableError,
    ProviderUnsupportedError,
    ResumeFailedError,
)
from sandkeeper.domain.errors.refused import (
    BudgetSpentError,
    CapacityFullError,
    CheckpointExistsError,
    CheckpointLimitError,
    CreditRefusedError,
    CreditUnavailableError,
    InstanceTakenError,
    InvalidTransitionError,
    JobNotReadyError,
    KeyExistsError,
    NotADesktopSessionError,
    PolicyRefusedError,
    QuotaExceededError,
    RefusedError,
    RegionBusyError,
    SandboxBusyError,
    SandboxDiskFullError,
    SandboxExistsError,
    SessionExistsError,
    SessionLimitError,
    WrongStateError,
)
from sandkeeper.domain.errors.request import (
    IdempotencyInFlightError,
    IdempotencyMismatchError,
    InputError,
    InvalidRequestError,
    PayloadTooLargeError,
)
from sandkeeper.domain.errors.store import (
    FilesDamagedError,
    FilesUnavailableError,
    SchemaMismatchError,
    SchemaTooNewError,
    StoreError,
    StoreUnavailableError,
    VersionConflictError,
)
from sandkeeper.domain.errors.wake import (
    AppNotReadyError,
    SandboxExpiredError,
    SandboxUnreachableError,
    StreamNotReadyError,
    WakeError,
    WakeFailedError,
)

__all__ = [
    "AccessError",
    "AppNotReadyError",
    "BudgetNotFoundError",
    "BudgetSpentError",
    "CapacityFullError",
    "CaptureUnsupportedError",
    "CheckpointExistsError",
    "CheckpointLimitError",
    "CreditRefusedError",
    "CreditUnavailableError",
    "FilesDamagedError",
    "FilesUnavailableError",
    "ForbiddenError",
    "IdempotencyInFlightError",
    "IdempotencyMismatchError",
    "IdentityProviderUnavailableError",
    "InputError",
    "InstanceGoneError",
    "InstanceTakenError",
    "InvalidRequestError",
    "InvalidSettingsError",
    "InvalidSignatureError",
    "InvalidTransitionError",
    "JobNotFoundError",
    "JobNotReadyError",
    "KeyExistsError",
    "KeyNotFoundError",
    "LeaseNotFoundError",
    "NotADesktopSessionError",
    "NotFoundError",
    "OutcomeUnknownError",
    "PayloadTooLargeError",
    "PolicyRefusedError",
    "ProviderAmbiguousError",
    "ProviderError",
    "ProviderFullError",
    "ProviderRateLimitedError",
    "ProviderRefusedError",
    "ProviderUnauthorizedError",
    "ProviderUnavailableError",
    "ProviderUnsupportedError",
    "QuotaExceededError",
    "RefusedError",
    "RegionBusyError",
    "ResumeFailedError",
    "SandboxBusyError",
    "SandboxDiskFullError",
    "SandboxExistsError",
    "SandboxExpiredError",
    "SandboxNotFoundError",
    "SandboxUnreachableError",
    "SandkeeperError",
    "SavedFileNotFoundError",
    "SchemaMismatchError",
    "SchemaTooNewError",
    "SessionExistsError",
    "SessionLimitError",
    "SessionNotFoundError",
    "StoreError",
    "StoreUnavailableError",
    "StreamNotReadyError",
    "TaskNotFoundError",
    "TokenNotFoundError",
    "UnauthenticatedError",
    "VersionConflictError",
    "WakeError",
    "WakeFailedError",
    "WakeNotFoundError",
    "WrongStateError",
]
