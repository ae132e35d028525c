"""Traces are off unless an endpoint is named, and cost nothing then."""

from __future__ import annotations

import sys

import pytest

from sandkeeper.common.tracing import ENDPOINTS, MissingExtraError, Tracing


def test_without_an_endpoint_a_span_is_one_shared_empty_context() -> None:
    tracing = Tracing()
    assert not tracing.start(version="1")
    assert tracing.span("a", project="p") is tracing.span("b")
    with tracing.span("a") as span:
        assert span is None
        assert tracing.find_trace_id() is None


def test_an_endpoint_without_the_extra_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENDPOINTS[0], "http://127.0.0.1:9")
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with pytest.raises(MissingExtraError):
        Tracing().start(version="1")
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    assert not Tracing().start(version="1")
