"""The meaning of E2B's terms: one table for exceptions, one for statuses, one for states.

The tables are total: a test walks the SDK's own list of exceptions and states, and fails when a new
version has one that is missing here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum

import e2b
import httpx
from connectrpc.errors import ConnectError
from e2b import exceptions as sdk

from sandkeeper.domain.errors import (
    InstanceGoneError,
    ProviderAmbiguousError,
    ProviderFullError,
    ProviderRateLimitedError,
    ProviderRefusedError,
    ProviderUnauthorizedError,
    ProviderUnavailableError,
    ProviderUnsupportedError,
    SandkeeperError,
    WrongStateError,
)
from sandkeeper.providers.base import InstanceState
from sandkeeper.providers.e2b.replies import HttpReply, UnexpectedReplyError, find_reply


class Verdict(StrEnum):
    """What a failed call says about the instance and about the provider."""

    #: The provider said that this instance does not exist. The only definitive one.
    GONE = "gone"
    #: The instance exists or existed and does not run: paused or ended. `get` tells which.
    NOT_RUNNING = "not_running"
    #: No answer, or one that says "later". Nothing is known about the instance.
    UNREACHABLE = "unreachable"
    #: Too many requests. Nothing was done.
    RATE_LIMITED = "rate_limited"
    #: As many sandboxes run as the plan allows at a time. Nothing was done.
    FULL = "full"
    #: The key is wrong or does not allow this: a configuration problem.
    UNAUTHORIZED = "unauthorized"
    #: The request was understood and refused. The same request will fail again.
    REFUSED = "refused"
    #: This provider or plan does not offer the function.
    UNSUPPORTED = "unsupported"
    #: An answer that cannot be interpreted. Nothing is known about the instance.
    AMBIGUOUS = "ambiguous"


EXCEPTIONS: Mapping[type[BaseException], Verdict] = {
    sdk.SandboxException: Verdict.AMBIGUOUS,
    sdk.TimeoutException: Verdict.UNREACHABLE,
    sdk.InvalidArgumentException: Verdict.REFUSED,
    sdk.NotEnoughSpaceException: Verdict.REFUSED,
    sdk.NotFoundException: Verdict.REFUSED,
    sdk.FileNotFoundException: Verdict.REFUSED,
    sdk.SandboxNotFoundException: Verdict.GONE,
    sdk.SandboxNotRunningException: Verdict.NOT_RUNNING,
    sdk.SandboxUnreachableException: Verdict.UNREACHABLE,
    sdk.AuthenticationException: Verdict.UNAUTHORIZED,
    sdk.GitAuthException: Verdict.REFUSED,
    sdk.GitUpstreamException: Verdict.REFUSED,
    sdk.TemplateException: Verdict.REFUSED,
    sdk.RateLimitException: Verdict.RATE_LIMITED,
    sdk.GuestUnresponsiveException: Verdict.REFUSED,
    sdk.ServiceBusyException: Verdict.UNREACHABLE,
    sdk.BuildException: Verdict.REFUSED,
    sdk.FileUploadException: Verdict.REFUSED,
    sdk.VolumeException: Verdict.REFUSED,
    sdk.VolumeNotFoundException: Verdict.REFUSED,
    sdk.VolumePathNotFoundException: Verdict.REFUSED,
    sdk.SecretException: Verdict.REFUSED,
    sdk.SecretNotFoundException: Verdict.REFUSED,
    UnexpectedReplyError: Verdict.AMBIGUOUS,
    httpx.TransportError: Verdict.UNREACHABLE,
    httpx.HTTPError: Verdict.AMBIGUOUS,
    ConnectError: Verdict.UNREACHABLE,  # The SDK passes on only those of a lost connection.
    OSError: Verdict.UNREACHABLE,
    TimeoutError: Verdict.UNREACHABLE,
    BaseException: Verdict.AMBIGUOUS,
}

STATUSES: Mapping[int, Verdict] = {
    400: Verdict.REFUSED,
    401: Verdict.UNAUTHORIZED,
    402: Verdict.UNAUTHORIZED,
    403: Verdict.UNAUTHORIZED,
    404: Verdict.REFUSED,
    405: Verdict.UNSUPPORTED,
    408: Verdict.UNREACHABLE,
    409: Verdict.REFUSED,
    413: Verdict.REFUSED,
    422: Verdict.REFUSED,
    429: Verdict.RATE_LIMITED,
    501: Verdict.UNSUPPORTED,
    500: Verdict.UNREACHABLE,
    502: Verdict.UNREACHABLE,
    503: Verdict.UNREACHABLE,
    504: Verdict.UNREACHABLE,
    507: Verdict.UNREACHABLE,
}

STATES: Mapping[e2b.SandboxState, InstanceState] = {
    e2b.SandboxState.RUNNING: InstanceState.RUNNING,
    e2b.SandboxState.PAUSED: InstanceState.PAUSED,
}

#: The texts with which old and new SDKs and proxies say that a sandbox does not run. None of them
#: tells a paused sandbox from an ended one.
NOT_RUNNING_WORDS = (
    "was not found",
    "likely due to sandbox timeout",
    "killed or reached its end of life",
    "killed or reached its timeout",
)
#: The sandbox runs and the port inside it does not answer.
PORT_CLOSED_WORDS = ("port is not open",)


#: How the limit of a plan is told from the limit of requests, which has the same status. The number
#: is how many may run.
FULL_WORDS = re.compile(r"concurrent\b.*?\bsandbox(?:es)?\b(?:\D*(\d+))?", re.IGNORECASE)


def judge(error: BaseException) -> tuple[Verdict, HttpReply | None]:
    """Return what this error means, and the HTTP reply behind it if there was one.

    The exception's own class decides where the SDK was sure. A status overrides a parser's error or
    a general one. The text overrides a plain timeout, because old SDKs reported other errors as
    timeouts.
    """
    verdict = next(EXCEPTIONS[kind] for kind in type(error).__mro__ if kind in EXCEPTIONS)
    reply = find_reply(error)
    if verdict is Verdict.AMBIGUOUS and reply is not None:
        if reply.status == 404 and not reply.has_own_words:
            return Verdict.AMBIGUOUS, reply
        return STATUSES.get(reply.status, Verdict.AMBIGUOUS), reply
    if verdict is Verdict.RATE_LIMITED and FULL_WORDS.search(read_words(error)):
        return Verdict.FULL, reply
    if type(error) is sdk.TimeoutException:
        words = read_words(error).lower()
        is_closed_port = any(text in words for text in PORT_CLOSED_WORDS)
        if not is_closed_port and any(text in words for text in NOT_RUNNING_WORDS):
            return Verdict.NOT_RUNNING, reply
    return verdict, reply


def read_limit(words: str) -> int | None:
    """Return how many sandboxes the plan allows, if a refusal says it."""
    found = FULL_WORDS.search(words)
    return None if found is None or found[1] is None else int(found[1])


def read_words(error: BaseException) -> str:
    """Return the error's own text; an error that cannot say what it is has none."""
    try:
        return str(error)
    except Exception:  # noqa: BLE001  Its class says enough.
        return ""


ERRORS: Mapping[Verdict, type[SandkeeperError]] = {
    Verdict.GONE: InstanceGoneError,
    Verdict.NOT_RUNNING: WrongStateError,
    Verdict.UNREACHABLE: ProviderUnavailableError,
    Verdict.RATE_LIMITED: ProviderRateLimitedError,
    Verdict.FULL: ProviderFullError,
    Verdict.UNAUTHORIZED: ProviderUnauthorizedError,
    Verdict.REFUSED: ProviderRefusedError,
    Verdict.UNSUPPORTED: ProviderUnsupportedError,
    Verdict.AMBIGUOUS: ProviderAmbiguousError,
}


def read_count(told: object) -> int | None:
    """Return a number of processors or MiB as a provider told it; None for anything else."""
    return told if isinstance(told, int) and 0 < told < 2**31 else None
