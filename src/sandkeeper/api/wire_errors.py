"""The errors that only HTTP has. The client raises them too: import nothing of a server here.

::

    ApiError
    ├── RouteNotFoundError        404   no such address
    ├── MethodNotAllowedError     405   not with this verb
    ├── UnknownMethodError        501   no verb of HTTP's
    ├── MalformedRequestError     400   not JSON, or not a header's form
    ├── FeatureDisabledError      503   an operator turned this part off
    ├── TooManyRequestsError      429   above the rate of this key, token or address
    └── TooManyStreamsError       503   as many live streams as this server may hold
"""

from __future__ import annotations

from typing import Any

from sandkeeper.domain import errors as domain_errors
from sandkeeper.domain.errors import SandkeeperError


class ApiError(SandkeeperError, abstract=True):
    """The request cannot be answered."""

    hint = "GET /openapi.json lists every route."


class RouteNotFoundError(ApiError):
    """There is no such route."""


class MethodNotAllowedError(ApiError):
    """This route does not support this method."""


class UnknownMethodError(ApiError):
    """No route supports this method."""


class MalformedRequestError(ApiError):
    """The request cannot be parsed."""

    hint = (
        "Send well-formed HTTP/1.1 with a head below 64 KiB; where the route takes a body, "
        "a JSON object with 'Content-Type: application/json'."
    )


class FeatureDisabledError(ApiError):
    """This feature is disabled."""

    hint = "An operator turned it off; GET /readyz shows the switches."
    retryable = True


class TooManyRequestsError(ApiError):
    """The limit of requests is reached."""

    hint = "Wait as long as Retry-After says, then try again."
    retryable = True


class TooManyStreamsError(ApiError):
    """The limit of live streams is reached."""

    hint = "Poll the status at the interval it names, and try the stream again later."
    retryable = True


def list_wire_errors() -> list[type[SandkeeperError]]:
    """Return every error that an answer of the keeper may name, parents first."""
    return [
        one
        for one in SandkeeperError.walk()
        if one.__module__.startswith(f"{domain_errors.__name__}.") or issubclass(one, ApiError)
    ]


def read_detail(detail: Any) -> str:
    """Return the sentence of a problem; on the routes of jobs it is inside an object."""
    return str(detail["message"] if isinstance(detail, dict) else detail)
