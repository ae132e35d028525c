"""The engine's errors, without any HTTP.

EngineError
├── InvalidRequestError      the request itself is wrong, or asks for what is not supported
├── NotFoundError            no such sandbox, template, build or webhook
├── ConflictError            right request, wrong moment
│   └── IdempotencyError     the key was used for another request, or its first use is in progress
├── LimitError               the engine is full
├── NotImplementedHereError  a part of E2B's API that this engine leaves out
└── MachineError             the machine could not do it
    └── NoRoomError          the engine's disk is full
"""

from __future__ import annotations


class EngineError(Exception):
    """The root; `message` is what the caller reads."""

    def __init__(self, message: str, *, error_code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.error_code = error_code


class BadRequestError(EngineError):
    """The request cannot be served as it is; sending it again will not help."""


class ResourceNotFoundError(EngineError):
    """What the request names is not here."""

    @classmethod
    def of_sandbox(cls, sandbox_id: str) -> ResourceNotFoundError:
        return cls(f"Sandbox \"{sandbox_id}\" doesn't exist or you don't have access to it")


class ConflictError(EngineError):
    """The sandbox is in a state, or on its way to one, that forbids this."""


class IdempotencyError(ConflictError):
    """The Idempotency-Key does not fit this request."""


class LimitError(EngineError):
    """A bound of the engine is reached; something has to end first."""


class NotImplementedHereError(EngineError):
    """E2B has it and this engine does not; the message names it and says what to do instead."""


class MachineError(EngineError):
    """The runtime failed; nothing of the attempt is left."""


class NoRoomError(MachineError):
    """The disk that all sandboxes share is full; killing one or deleting a template makes room."""
