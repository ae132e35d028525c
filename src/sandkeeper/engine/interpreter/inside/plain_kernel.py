"""The process that runs Python code where IPython is not installed.

It keeps variables, shows the last expression by its `_repr_…_` hooks and reports errors. All that
notebooks add to the language needs IPython.
"""

from __future__ import annotations

import ast
import asyncio
import builtins
import contextlib
import inspect
import json
import linecache
import os
import signal
import sys
import traceback
import types
from typing import Any

from sandkeeper.engine.interpreter.inside.reports import LentVariables, Reports

HOOKS = {
    "_repr_html_": "text/html",
    "_repr_markdown_": "text/markdown",
    "_repr_svg_": "image/svg+xml",
    "_repr_png_": "image/png",
    "_repr_jpeg_": "image/jpeg",
    "_repr_pdf_": "application/pdf",
    "_repr_latex_": "text/latex",
    "_repr_json_": "application/json",
    "_repr_javascript_": "application/javascript",
}


class PlainKernel:
    """Reads requests, runs them in one namespace, and reports."""

    def __init__(self, reports: Reports) -> None:
        self._reports = reports
        self._loop = asyncio.new_event_loop()
        self._main = types.ModuleType("__main__")
        self._names = self._main.__dict__
        self._names.update(display=self.display, __builtins__=builtins)

    def serve(self, requests: int) -> None:
        """Serve until the requests end."""
        sys.modules["__main__"] = self._main
        asyncio.set_event_loop(self._loop)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        for line in os.fdopen(requests, "rb"):
            request = json.loads(line)
            with LentVariables(request["env"]):
                self._run(request["code"], f"<cell {request['number']}>")
            if self._reports.is_forked():
                os._exit(0)
            self._reports.write({"type": "done"})

    def display(self, *things: Any, **_: Any) -> None:
        """Show things as rich results."""
        for thing in things:
            self._reports.write_result(render(thing), is_main=False)

    def _run(self, code: str, name: str) -> None:
        try:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            try:
                self._execute(code, name)
            finally:
                signal.signal(signal.SIGINT, signal.SIG_IGN)
        except BaseException as error:  # noqa: BLE001  # whatever the code raises is its result
            self._report_error(error)
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()

    def _execute(self, code: str, name: str) -> None:
        linecache.cache[name] = (len(code), None, code.splitlines(keepends=True), name)
        tree = ast.parse(code, name)
        last = None
        if tree.body and isinstance(tree.body[-1], ast.Expr):
            last = ast.Expression(tree.body.pop().value)  # type: ignore[attr-defined]  # it is an Expr
        self._evaluate(tree, name, "exec")
        if last is not None:
            value = self._evaluate(last, name, "eval")
            if value is not None and not code.rstrip().endswith(";"):
                self._names["_"] = value
                self._reports.write_result(render(value), is_main=True)

    def _evaluate(self, tree: ast.AST, name: str, mode: str) -> Any:
        code = compile(  # type: ignore[call-overload]  # a tree of either kind
            tree, name, mode, flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True
        )
        value = eval(code, self._names)  # noqa: S307  # running it is the purpose
        if not code.co_flags & inspect.CO_COROUTINE:
            return value
        task = self._loop.create_task(value)
        try:
            return self._loop.run_until_complete(task)
        except BaseException:
            if not task.done():
                task.cancel()
                with contextlib.suppress(BaseException):
                    self._loop.run_until_complete(task)
            raise

    def _report_error(self, error: BaseException) -> None:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
        frames = error.__traceback__
        while frames is not None and not frames.tb_frame.f_code.co_filename.startswith("<cell "):
            frames = frames.tb_next
        try:
            lines = traceback.format_exception(type(error), error, frames)
        except Exception as broken:  # noqa: BLE001  # an error whose own text fails
            lines = [f"{type(error).__name__} (its text cannot be shown: {broken!r})\n"]
        self._reports.write_error(type(error).__name__, as_text(error, str), "".join(lines))


def render(thing: Any) -> dict[str, Any]:
    """Return everything a thing can be shown as. A hook that fails is left out."""
    content = {"text/plain": as_text(thing, repr)}
    for hook, kind in HOOKS.items():
        with contextlib.suppress(Exception):
            value = getattr(thing, hook)() if not isinstance(thing, type) else None
            if value is not None:
                content[kind] = value
    if isinstance(thing, (dict, list)):
        with contextlib.suppress(TypeError, ValueError, RecursionError):
            content["application/json"] = json.loads(json.dumps(thing))
    return content


def as_text(thing: Any, how: Any) -> str:
    try:
        return str(how(thing))
    except Exception as error:  # noqa: BLE001  # the code's own text may raise anything
        return f"<{type(thing).__name__} that cannot be shown: {type(error).__name__}>"


def main(requests: int, reports: int, _unused: str) -> None:
    os.set_inheritable(requests, False)
    sys.argv, sys.path[0] = [""], ""
    PlainKernel(Reports(reports)).serve(requests)
