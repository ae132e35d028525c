"""Traces: spans of OpenTelemetry, if an OTLP endpoint is set; otherwise nothing, at no cost.

The extra `otel` has the official SDK. Its own variables configure it: `OTEL_EXPORTER_OTLP_ENDPOINT`
switches it on, and `OTEL_TRACES_SAMPLER`, `OTEL_SERVICE_NAME` and so on mean what its documentation
says.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Span, Tracer

ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
Attribute = str | bool | int | float | Sequence[str]
_OFF: Final[AbstractContextManager[None]] = nullcontext()


class MissingExtraError(Exception):
    """An endpoint is set, and the SDK is not installed."""


class Tracing:
    """The spans of this process."""

    def __init__(self) -> None:
        self._tracer: Tracer | None = None
        self._provider: TracerProvider | None = None

    @property
    def is_on(self) -> bool:
        """Return whether spans are sent anywhere."""
        return self._tracer is not None

    def start(self, *, version: str) -> bool:
        """Send spans to the endpoint of the environment; return False if it names none.

        Raise MissingExtraError if the SDK is not installed.
        """
        is_disabled = os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true"
        if is_disabled or not any(os.environ.get(name) for name in ENDPOINTS):
            return False
        try:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import (  # noqa: PLC0415
                OTLPSpanExporter,
            )
            from opentelemetry.sdk.resources import Resource  # noqa: PLC0415
            from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415
            from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415
        except ImportError as error:
            raise MissingExtraError(error.name) from error
        # What the environment names wins over these.
        named = {"service.name": os.environ.get("OTEL_SERVICE_NAME") or "sandkeeper"}
        resource = Resource.create({**named, "service.version": version})
        self._provider = TracerProvider(resource=resource)
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        self._tracer = self._provider.get_tracer("sandkeeper", version)
        return True

    def stop(self) -> None:
        """Send what is left, and no more."""
        provider, self._provider, self._tracer = self._provider, None, None
        if provider is not None:
            provider.shutdown()

    def span(self, name: str, **attributes: Attribute | None) -> AbstractContextManager[Any]:
        """Return a context whose work is a span with these attributes; None is left out.

        It yields the span, or None where traces are off.
        """
        if self._tracer is None:
            return _OFF
        return self._tracer.start_as_current_span(name, attributes=_render(attributes))

    def request_span(
        self, name: str, headers: Mapping[bytes, bytes], **attributes: Attribute | None
    ) -> AbstractContextManager[Any]:
        """Return the span of a request; it continues the trace that `traceparent` names."""
        if self._tracer is None:
            return _OFF
        from opentelemetry.trace import SpanKind  # noqa: PLC0415
        from opentelemetry.trace.propagation.tracecontext import (  # noqa: PLC0415
            TraceContextTextMapPropagator,
        )

        given = {
            key: headers[key.encode()].decode("latin-1")
            for key in ("traceparent", "tracestate")
            if key.encode() in headers
        }
        return self._tracer.start_as_current_span(
            name,
            context=TraceContextTextMapPropagator().extract(given),
            kind=SpanKind.SERVER,
            attributes=_render(attributes),
        )

    def find_trace_id(self) -> str | None:
        """Return the id of the trace that the current work belongs to."""
        if self._tracer is None:
            return None
        from opentelemetry.trace import get_current_span  # noqa: PLC0415

        context = get_current_span().get_span_context()
        return f"{context.trace_id:032x}" if context.is_valid else None


def set_attributes(span: Span | None, **attributes: Attribute | None) -> None:
    """Add attributes to a span that `Tracing.span` yielded; dots are written as two underscores."""
    if span is not None:
        span.set_attributes(_render(attributes))


def _render(attributes: Mapping[str, Attribute | None]) -> dict[str, Attribute]:
    return {
        name.replace("__", "."): value for name, value in attributes.items() if value is not None
    }


TRACING: Final = Tracing()
"""The spans of this process."""
