"""Errors on the wire: one shape (problem+json, RFC 9457), one table, the last step before sending.

The domain's errors know no HTTP; `STATUS` gives each branch of their tree its status. What only
this layer can say is in ``wire_errors.py``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Final

import orjson
import structlog

from sandkeeper.api.wire_errors import (
    ApiError,
    FeatureDisabledError,
    MalformedRequestError,
    MethodNotAllowedError,
    RouteNotFoundError,
    TooManyRequestsError,
    TooManyStreamsError,
    UnknownMethodError,
)
from sandkeeper.common.tracing import TRACING
from sandkeeper.domain import errors

log = structlog.get_logger(__name__)

MEDIA_TYPE = "application/problem+json"


STATUS: Final[dict[type[errors.SandkeeperError], HTTPStatus]] = {
    errors.NotFoundError: HTTPStatus.NOT_FOUND,
    errors.RefusedError: HTTPStatus.CONFLICT,
    errors.JobNotReadyError: HTTPStatus.UNPROCESSABLE_ENTITY,
    errors.SessionLimitError: HTTPStatus.TOO_MANY_REQUESTS,
    errors.CapacityFullError: HTTPStatus.TOO_MANY_REQUESTS,
    errors.QuotaExceededError: HTTPStatus.TOO_MANY_REQUESTS,
    errors.PolicyRefusedError: HTTPStatus.FORBIDDEN,
    errors.BudgetSpentError: HTTPStatus.PAYMENT_REQUIRED,
    errors.CreditRefusedError: HTTPStatus.PAYMENT_REQUIRED,
    errors.CreditUnavailableError: HTTPStatus.SERVICE_UNAVAILABLE,
    errors.InputError: HTTPStatus.UNPROCESSABLE_ENTITY,
    errors.PayloadTooLargeError: HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    errors.IdempotencyInFlightError: HTTPStatus.CONFLICT,
    errors.AccessError: HTTPStatus.UNAUTHORIZED,
    errors.ForbiddenError: HTTPStatus.FORBIDDEN,
    errors.IdentityProviderUnavailableError: HTTPStatus.SERVICE_UNAVAILABLE,
    errors.ProviderError: HTTPStatus.BAD_GATEWAY,
    errors.InstanceGoneError: HTTPStatus.CONFLICT,
    errors.ProviderUnavailableError: HTTPStatus.SERVICE_UNAVAILABLE,
    errors.ResumeFailedError: HTTPStatus.SERVICE_UNAVAILABLE,
    errors.ProviderRateLimitedError: HTTPStatus.SERVICE_UNAVAILABLE,
    errors.ProviderFullError: HTTPStatus.SERVICE_UNAVAILABLE,
    errors.ProviderUnsupportedError: HTTPStatus.UNPROCESSABLE_ENTITY,
    errors.ProviderRefusedError: HTTPStatus.UNPROCESSABLE_ENTITY,
    errors.WakeError: HTTPStatus.SERVICE_UNAVAILABLE,
    errors.StoreError: HTTPStatus.SERVICE_UNAVAILABLE,
    errors.VersionConflictError: HTTPStatus.CONFLICT,
    errors.InvalidSettingsError: HTTPStatus.INTERNAL_SERVER_ERROR,
    ApiError: HTTPStatus.BAD_REQUEST,
    RouteNotFoundError: HTTPStatus.NOT_FOUND,
    MethodNotAllowedError: HTTPStatus.METHOD_NOT_ALLOWED,
    UnknownMethodError: HTTPStatus.NOT_IMPLEMENTED,
    FeatureDisabledError: HTTPStatus.SERVICE_UNAVAILABLE,
    TooManyRequestsError: HTTPStatus.TOO_MANY_REQUESTS,
    TooManyStreamsError: HTTPStatus.SERVICE_UNAVAILABLE,
}
"""A class without a line of its own has the status of its nearest ancestor with one."""


def make_validation_error(
    problems: Sequence[Mapping[str, Any]], *, skip: int = 0
) -> errors.SandkeeperError:
    """Return the error for what pydantic found, field by field, without repeating what was sent.

    `skip` is the number of leading parts of each location that are not names of fields.
    """
    if any(problem["type"] == "json_invalid" for problem in problems):
        return MalformedRequestError("The body is not JSON.")
    found = [
        {"field": ".".join(str(part) for part in one["loc"][skip:]), "problem": one["msg"]}
        for one in problems
    ]
    text = "; ".join(f"{one['field'] or 'body'}: {one['problem']}" for one in found[:5])
    return errors.InvalidRequestError(text, errors=found)


@dataclass(frozen=True, slots=True)
class ErrorResponse:
    """An error, ready to be sent."""

    status: int
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)


def status_of(error: type[BaseException]) -> HTTPStatus:
    """Return the HTTP status of a class of errors."""
    for ancestor in error.__mro__:
        if issubclass(ancestor, errors.SandkeeperError) and ancestor in STATUS:
            return STATUS[ancestor]
    return HTTPStatus.INTERNAL_SERVER_ERROR


def render_error(error: Exception, request_id: str) -> ErrorResponse:
    """Return the error as its caller may see it; an unexpected one shows only its request id."""
    status = status_of(type(error))
    if isinstance(error, errors.SandkeeperError):
        code, hint, retryable = error.code, error.hint, error.retryable
        detail, retry_after_s = error.message, error.retry_after_s
        facts = error.fields
    else:
        code, hint, retryable = "internal", errors.SandkeeperError.hint, False
        detail, retry_after_s, facts = "Something went wrong in Sandkeeper.", None, {}
    body: dict[str, object] = {
        "type": f"urn:sandkeeper:{code}",
        "title": status.phrase,
        "status": status.value,
        "detail": detail,
        "code": code,
        "retryable": retryable,
        "hint": hint,
        "requestId": request_id,
    }
    trace_id = TRACING.find_trace_id()
    if trace_id is not None:
        body["traceId"] = trace_id
    for name in ("errors", "error_type", "cause", "position"):
        if name in facts:
            body[name] = facts[name]
    if "error_type" in facts:
        # Host applications of jobs read it there.
        body["detail"] = {"message": detail, "error_type": facts["error_type"]}
    headers = {"Content-Type": MEDIA_TYPE, "Cache-Control": "no-store"}
    if status is HTTPStatus.UNAUTHORIZED:
        headers["WWW-Authenticate"] = "Bearer"
    if retryable and status in {409, 429, 503}:
        headers["Retry-After"] = str(max(1, math.ceil(retry_after_s or 1)))
    if isinstance(error, MethodNotAllowedError):
        headers["Allow"] = str(facts.get("allowed", ""))
    return ErrorResponse(status.value, orjson.dumps(body, default=str), headers)


def log_failure(error: Exception, answer: ErrorResponse, scope: Mapping[str, Any]) -> None:
    """Log why a request failed, under the request id that the caller got.

    Each has one short line. What the caller cannot change is logged as an error besides, with a
    traceback if it was not foreseen; repeats of that are only counted.
    """
    about = {"method": scope["method"], "path": scope["path"], "status": answer.status}
    text = f"{type(error).__name__}: {error}"
    log.info("request_error", error=text, **about)
    if answer.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        is_unforeseen = answer.status == HTTPStatus.INTERNAL_SERVER_ERROR
        code = getattr(error, "code", type(error).__name__)
        trace = error if is_unforeseen else None
        log.error("request_failed", error=text, code=code, exc_info=trace, **about)
