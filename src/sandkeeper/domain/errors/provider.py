"""What the provider answered, or did not."""

from __future__ import annotations

from sandkeeper.domain.errors.base import SandkeeperError


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


class ProviderFullError(ProviderError):
    """The provider lets no more sandboxes run at a time."""

    hint = "Wait until one stops, or raise the limit of the plan."
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
