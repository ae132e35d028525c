"""The request itself is wrong."""

from __future__ import annotations

from sandkeeper.domain.errors.base import SandkeeperError


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
