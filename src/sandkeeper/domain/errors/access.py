"""Who may ask."""

from __future__ import annotations

from sandkeeper.domain.errors.base import SandkeeperError


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
