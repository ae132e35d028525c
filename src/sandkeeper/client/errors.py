"""The errors that the client raises: the keeper's own, and a few of the client itself.

The `code` of an error response names a class of `sandkeeper.domain.errors` or `api.wire_errors`.
The client raises that class, so a host application catches `SandboxNotFoundError` whether the
keeper is embedded or remote. Each error has `code`, `hint`, `retryable`, a message, and in `fields`
the `status` and the `request_id`.

::

    SandkeeperError
    ├── …                               the keeper's errors, by code
    └── ClientError
        ├── KeeperUnreachableError      no response, or none in time
        ├── WakeTimedOutError           the wake is still in progress
        └── UnrecognizedAnswerError     a response this client does not understand
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import httpx

from sandkeeper.api.wire_errors import list_wire_errors, read_detail
from sandkeeper.domain.errors import SandkeeperError

# Status codes that a proxy returns while the keeper behind it is down.
PROXY_STATUSES = frozenset({502, 503, 504})
# A longer body is an error page of another server; its beginning is enough.
SHOWN_MAX = 300


class ClientError(SandkeeperError, abstract=True):
    """The request to the keeper failed."""

    hint = "Check the keeper's URL: `sandkeeper up` prints it."


class KeeperUnreachableError(ClientError):
    """The keeper does not respond."""

    hint = "Start it with `sandkeeper up`, or check the URL."
    retryable = True


class WakeTimedOutError(ClientError):
    """The wake is still in progress."""

    hint = "Call `wake` again to join it, or check the app's log."
    retryable = True


class UnrecognizedAnswerError(ClientError):
    """The client does not understand the response."""

    hint = "Check that the URL is a keeper's, and that client and keeper have the same version."


def read_problem(response: httpx.Response) -> SandkeeperError:
    """Return the error of a response; UnrecognizedAnswerError if it is not problem+json."""
    try:
        problem = response.json()
        code, detail = str(problem["code"]), read_detail(problem["detail"])
    except (ValueError, KeyError, TypeError):
        kind = (
            KeeperUnreachableError
            if response.status_code in PROXY_STATUSES
            else UnrecognizedAnswerError
        )
        return kind(
            f"HTTP {response.status_code}: {response.text[:SHOWN_MAX]}", status=response.status_code
        )
    fields: dict[str, Any] = {"status": response.status_code}
    if problem.get("requestId"):
        fields["request_id"] = problem["requestId"]
    if "errors" in problem:
        fields["errors"] = problem["errors"]
    wait_s = _parse_retry_after(response.headers.get("Retry-After"))
    if wait_s is not None:
        fields["retry_after_s"] = wait_s
    return get_error_class(code, problem)(detail, **fields)


def get_error_class(code: str, problem: Mapping[str, Any]) -> type[SandkeeperError]:
    """Return the class of a code; for an unknown one, a class with the problem's attributes."""
    for one in list_wire_errors():
        if one.code == code:
            return one
    # A newer keeper may send a code that this client does not know.
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


def _parse_retry_after(text: str | None) -> float | None:
    """Parse seconds; the keeper never sends the date form."""
    try:
        return max(0.0, float(text)) if text else None
    except ValueError:
        return None
