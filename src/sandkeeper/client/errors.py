"""What a client raises: the keeper's own errors, and a few that only a client can meet.

An answer's `code` names a class of `sandkeeper.domain.errors` (or of the API's small branch), and
that class is raised here too, so that a host application catches `SandboxNotFoundError` whether the
keeper is in its own process or across a network. Each has `code`, `hint`, `retryable`, the message,
and in `fields` the `status` and the `request_id`.

::

    SandkeeperError
    ├── …                               all that the keeper tells by its code
    └── ClientError
        ├── KeeperUnreachableError      no answer: nobody there, or none in time
        ├── WakeTimedOutError           the wake goes on, and the caller did not wait for it
        └── UnrecognizedAnswerError     an answer that is no keeper's, or a newer one's
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sandkeeper.api.errors import ApiError
from sandkeeper.domain.errors import SandkeeperError

if TYPE_CHECKING:
    from collections.abc import Mapping

    import httpx

# What a proxy says in its own words when there is no keeper behind it just now.
PROXIES = frozenset({502, 503, 504})
# Beyond this a body is somebody's error page, and its beginning says enough.
SHOWN_MAX = 300


class ClientError(SandkeeperError, abstract=True):
    """The keeper could not be asked."""

    hint = "Check where the keeper runs: `sandkeeper up` prints its URL."


class KeeperUnreachableError(ClientError):
    """The keeper does not answer."""

    hint = "Start it with `sandkeeper up`, or check the URL."
    retryable = True


class WakeTimedOutError(ClientError):
    """The wake is still under way."""

    hint = "Ask again to join it, or look at the app's log."
    retryable = True


class UnrecognizedAnswerError(ClientError):
    """The answer is not one that this client understands."""

    hint = "Check that the URL is a keeper's, and that client and keeper have one version."


def read_problem(answer: httpx.Response) -> SandkeeperError:
    """The error that an answer tells. Anything but our own shape is UnrecognizedAnswerError."""
    try:
        problem = answer.json()
        code, detail = str(problem["code"]), str(problem["detail"])
    except (ValueError, KeyError, TypeError):
        kind = KeeperUnreachableError if answer.status_code in PROXIES else UnrecognizedAnswerError
        return kind(
            f"HTTP {answer.status_code}: {answer.text[:SHOWN_MAX]}", status=answer.status_code
        )
    fields: dict[str, Any] = {"status": answer.status_code}
    if problem.get("requestId"):
        fields["request_id"] = problem["requestId"]
    if "errors" in problem:
        fields["errors"] = problem["errors"]
    wait_s = _read_wait(answer.headers.get("Retry-After"))
    if wait_s is not None:
        fields["retry_after_s"] = wait_s
    return find_error_class(code, problem)(detail, **fields)


def find_error_class(code: str, problem: Mapping[str, Any]) -> type[SandkeeperError]:
    """The class that a code names; for one that is not known here, what the problem says."""
    for one in SandkeeperError.walk():
        if one.code == code and one.__module__ in TOLD_BY_CODE:
            return one
    # A newer keeper has a code that this client does not know: what it says of itself holds.
    unknown: type[SandkeeperError] = type(
        "UnrecognizedAnswerError",
        (UnrecognizedAnswerError,),
        {
            "__doc__": UnrecognizedAnswerError.__doc__,
            "hint": str(problem.get("hint", "")),
            "retryable": bool(problem.get("retryable")),
        },
    )
    unknown.code = code
    return unknown


TOLD_BY_CODE = frozenset({SandkeeperError.__module__, ApiError.__module__})


def _read_wait(text: str | None) -> float | None:
    """Seconds; the form with a date is one that the keeper never sends."""
    try:
        return max(0.0, float(text)) if text else None
    except ValueError:
        return None
