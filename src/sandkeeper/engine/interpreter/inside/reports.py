"""How a Python kernel writes reports: one line of JSON each, within limits."""

from __future__ import annotations

import base64
import json
import math
import os
from typing import Any

REPORT_MAX = 16 * 1024 * 1024
TEXT_MAX = 1024 * 1024
_NOTE_MAX = 100
FIELDS = {
    "text/plain": "text",
    "text/html": "html",
    "text/markdown": "markdown",
    "image/svg+xml": "svg",
    "image/png": "png",
    "image/jpeg": "jpeg",
    "application/pdf": "pdf",
    "text/latex": "latex",
    "application/json": "json",
    "application/javascript": "javascript",
    "e2b/data": "data",
    "e2b/chart": "chart",
}
"""The field of a result for each kind of content; every other kind goes into `extra`."""


class Reports:
    """The pipe to the service. A child that the code forked writes nothing into it."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._pid = os.getpid()
        os.set_inheritable(descriptor, False)

    def is_forked(self) -> bool:
        """Return whether this is a child that came back from the code: it is not the kernel."""
        return os.getpid() != self._pid

    def write(self, fields: dict[str, Any]) -> None:
        try:
            text = json.dumps(fields, default=repr, allow_nan=False)
        except ValueError:  # JSON has no NaN, and a caller's parser would refuse the whole line.
            text = json.dumps(without_nan(json.loads(json.dumps(fields, default=repr))))
        if len(text) > REPORT_MAX:
            size = REPORT_MAX // (1024 * 1024)
            note = f"[the result is left out: it is longer than {size} MB]"
            kept = {name: fields[name] for name in ("type", "is_main_result") if name in fields}
            text = json.dumps({**kept, "text": note})
        pending = text.encode() + b"\n"
        while pending and not self.is_forked():
            pending = pending[os.write(self._descriptor, pending) :]

    def write_result(self, content: dict[str, Any], *, is_main: bool) -> None:
        """Report what a thing can be shown as, by kind of content."""
        fields: dict[str, Any] = {}
        extra: dict[str, Any] = {}
        for kind, value in content.items():
            plain = base64.b64encode(value).decode() if isinstance(value, bytes) else value
            if kind in FIELDS:
                fields[FIELDS[kind]] = plain
            else:
                extra[str(kind)] = plain
        if isinstance(text := fields.get("text"), str):
            # As E2B does it: text is shown without its quotes.
            is_quoted = len(text) > 1 and text[0] == text[-1] == "'"
            fields["text"] = cut(text[1:-1] if is_quoted else text)
        if extra:
            fields["extra"] = extra
        self.write({"type": "result", "is_main_result": is_main, **fields})

    def write_error(self, name: str, value: str, traceback: str) -> None:
        fields = {"name": name, "value": cut(value), "traceback": cut(traceback)}
        self.write({"type": "error", **fields})


def cut(text: str) -> str:
    """Return a text that is not much longer than the limit; one that was cut stays as it is."""
    if len(text) <= TEXT_MAX + _NOTE_MAX:
        return text
    return f"{text[:TEXT_MAX]}\n[the rest is left out: {len(text)} characters]"


def without_nan(value: Any) -> Any:
    """Return the value with null for each NaN or infinity."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {name: without_nan(one) for name, one in value.items()}
    return [without_nan(one) for one in value] if isinstance(value, list) else value


class LentVariables:
    """Environment variables that are there for one call only."""

    def __init__(self, env: dict[str, str]) -> None:
        self._env = env
        self._before = {name: os.environ.get(name) for name in env}

    def __enter__(self) -> None:
        os.environ.update(self._env)

    def __exit__(self, *_: object) -> None:
        for name, value in self._before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
