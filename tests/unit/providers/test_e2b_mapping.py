"""The tables that say what E2B's words mean are total and keep gone apart from unreachable."""

from __future__ import annotations

import inspect

import e2b
import httpx
import pytest
from e2b import exceptions as sdk

from sandkeeper.domain.errors import InstanceGoneError
from sandkeeper.providers.e2b.mapping import ERRORS, EXCEPTIONS, STATES, Verdict, judge
from sandkeeper.providers.e2b.replies import HttpReply, UnexpectedReplyError


def sdk_exceptions() -> list[type[Exception]]:
    return [
        kind
        for _, kind in inspect.getmembers(sdk, inspect.isclass)
        if issubclass(kind, Exception) and kind.__module__ == sdk.__name__
    ]


def test_every_exception_of_the_sdk_has_a_row() -> None:
    missing = [kind.__name__ for kind in sdk_exceptions() if kind not in EXCEPTIONS]
    assert missing == []


def test_every_state_of_the_sdk_has_a_row() -> None:
    assert set(STATES) == set(e2b.SandboxState)


def test_every_verdict_has_an_error_and_only_gone_means_gone() -> None:
    assert set(ERRORS) == set(Verdict)
    gone = [verdict for verdict, error in ERRORS.items() if error is InstanceGoneError]
    assert gone == [Verdict.GONE]


@pytest.mark.parametrize(
    ("error", "verdict"),
    [
        (sdk.SandboxNotFoundException("Sandbox i1 not found"), Verdict.GONE),
        (sdk.SandboxNotRunningException("The sandbox was not found"), Verdict.NOT_RUNNING),
        (
            sdk.TimeoutException("The sandbox was not found: likely due to sandbox timeout"),
            Verdict.NOT_RUNNING,
        ),
        (
            sdk.TimeoutException("sandbox was killed or reached its end of life"),
            Verdict.NOT_RUNNING,
        ),
        (
            sdk.format_sandbox_unavailable_exception("The sandbox is running but port is not open"),
            Verdict.UNREACHABLE,
        ),
        (sdk.format_sandbox_unavailable_exception("connection lost"), Verdict.UNREACHABLE),
        (sdk.format_request_timeout_error(), Verdict.UNREACHABLE),
        (sdk.RateLimitException("429"), Verdict.RATE_LIMITED),
        (
            sdk.RateLimitException(
                "you have reached the maximum number of concurrent E2B sandboxes (20)"
            ),
            Verdict.FULL,
        ),
        (sdk.AuthenticationException("401"), Verdict.UNAUTHORIZED),
        (sdk.ServiceBusyException("503"), Verdict.UNREACHABLE),
        (httpx.ConnectError("refused"), Verdict.UNREACHABLE),
        (TimeoutError(), Verdict.UNREACHABLE),
        (KeyError("templateID"), Verdict.AMBIGUOUS),
        (UnexpectedReplyError(HttpReply(404, "<html>", None)), Verdict.AMBIGUOUS),
        (
            UnexpectedReplyError(HttpReply(404, '{"code": 404, "message": "no"}', None)),
            Verdict.REFUSED,
        ),
        (UnexpectedReplyError(HttpReply(403, "", None)), Verdict.UNAUTHORIZED),
        (UnexpectedReplyError(HttpReply(501, "", None)), Verdict.UNSUPPORTED),
        (UnexpectedReplyError(HttpReply(418, "", None)), Verdict.AMBIGUOUS),
    ],
    ids=lambda value: value.value if isinstance(value, Verdict) else type(value).__name__,
)
def test_each_wording_maps_to_its_own_verdict(error: Exception, verdict: Verdict) -> None:
    assert judge(error)[0] is verdict
