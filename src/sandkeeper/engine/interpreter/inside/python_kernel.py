"""The process that runs Python code. It is given to `python3 -c` as it stands here."""

from __future__ import annotations

import ast
import asyncio
import base64
import builtins
import contextlib
import importlib
import importlib.machinery
import inspect
import io
import json
import linecache
import math
import os
import re
import signal
import subprocess
import sys
import traceback
import types
from typing import Any

REPORT_MAX = 16 * 1024 * 1024
TEXT_MAX = 1024 * 1024
CHART_MAX = 4 * 1024 * 1024
HOOKS = {
    "_repr_html_": "html",
    "_repr_markdown_": "markdown",
    "_repr_svg_": "svg",
    "_repr_png_": "png",
    "_repr_jpeg_": "jpeg",
    "_repr_pdf_": "pdf",
    "_repr_latex_": "latex",
    "_repr_json_": "json",
    "_repr_javascript_": "javascript",
}
KINDS = {
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
}


class Shown:
    """What `IPython.display` offers where IPython itself is not installed."""

    def __init__(self, data: Any = None, filename: str | None = None, **_: Any) -> None:
        if filename is not None:
            with open(filename, "rb") as file:  # noqa: PTH123  # the code's own file
                data = file.read()
        self.data = data


def display_types() -> dict[str, type]:
    """Make `HTML`, `Markdown`, … each a class with its one hook."""
    named = {
        "HTML": "_repr_html_",
        "Markdown": "_repr_markdown_",
        "SVG": "_repr_svg_",
        "Latex": "_repr_latex_",
        "JSON": "_repr_json_",
        "Javascript": "_repr_javascript_",
        "Image": "_repr_png_",
    }
    return {name: type(name, (Shown,), {hook: lambda it: it.data}) for name, hook in named.items()}


class DisplayModuleFinder(importlib.machinery.PathFinder):
    """Finds the modules that the kernel itself offers, after every other finder."""

    offered: dict[str, types.ModuleType] = {}  # noqa: RUF012  # filled once, at the start

    @classmethod
    def find_spec(cls, fullname: str, path: Any = None, target: Any = None) -> Any:  # noqa: ARG003
        if fullname in cls.offered:
            return importlib.machinery.ModuleSpec(fullname, cls)  # type: ignore[arg-type]  # a finder that loads
        return None

    @classmethod
    def create_module(cls, spec: Any) -> types.ModuleType:
        return cls.offered[spec.name]

    @classmethod
    def exec_module(cls, module: types.ModuleType) -> None:
        if module.__name__ == "code_figures":
            agg = importlib.import_module("matplotlib.backends.backend_agg")
            module.FigureCanvas = agg.FigureCanvasAgg  # type: ignore[attr-defined]


class PythonKernel:
    """Reads requests, runs them in one namespace, and reports."""

    def __init__(self, requests: int, reports: int, charts_text: str) -> None:
        self._requests = os.fdopen(requests, "rb")
        self._reports = reports
        for descriptor in (requests, reports):
            os.set_inheritable(descriptor, False)
        self._pid = os.getpid()
        self._number = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._charts_text = charts_text
        self._charts: types.ModuleType | None = None
        self._main = types.ModuleType("__main__")
        self._names = self._main.__dict__
        self._names.update(display=self.display, __shell__=run_shell, __builtins__=builtins)

    def run(self) -> None:
        """Serve until the requests end."""
        sys.modules["__main__"] = self._main
        sys.argv, sys.path[0] = [""], ""
        self._offer()
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        for line in self._requests:
            request = json.loads(line)
            self._number = request["number"]
            self._serve(request["code"], request["env"])
            if os.getpid() != self._pid:
                os._exit(0)  # The code forked and its child came back here: it is not the kernel.

    def display(self, *things: Any, **_: Any) -> None:
        """Show things as rich results."""
        for thing in things:
            self._report_result(thing, is_main=False)

    def _offer(self) -> None:
        root, shown = types.ModuleType("IPython"), types.ModuleType("IPython.display")
        root.__path__ = []
        vars(shown).update(display_types(), display=self.display)
        vars(root).update(display=shown)
        figures = types.ModuleType("code_figures")
        vars(figures).update(show=lambda *_, **__: self._show_figures())
        DisplayModuleFinder.offered = {
            "IPython": root,
            "IPython.display": shown,
            "code_figures": figures,
        }
        sys.meta_path.append(DisplayModuleFinder)

    def _serve(self, code: str, env: dict[str, str]) -> None:
        before = {name: os.environ.get(name) for name in env}
        os.environ.update(env)
        try:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            try:
                self._execute(code)
                self._show_figures()
            finally:
                signal.signal(signal.SIGINT, signal.SIG_IGN)
        except BaseException as error:  # noqa: BLE001  # whatever the code raises is its result
            self._report_error(error)
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        self._report({"type": "done"})

    def _execute(self, code: str) -> None:
        name = f"<cell {self._number}>"
        tree, source = parse(code, name)
        linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
        last = None
        is_silent = source.rstrip().endswith(";")
        if tree.body and isinstance(tree.body[-1], ast.Expr):
            last = ast.Expression(tree.body.pop().value)  # type: ignore[attr-defined]  # it is an Expr
        self._evaluate(tree, name, "exec")
        if last is not None:
            value = self._evaluate(last, name, "eval")
            if value is not None and not is_silent:
                self._names["_"] = value
                self._report_result(value, is_main=True)

    def _evaluate(self, tree: ast.AST, name: str, mode: str) -> Any:
        code = compile(  # type: ignore[call-overload]  # a tree of either kind
            tree, name, mode, flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True
        )
        value = eval(code, self._names)  # noqa: S307  # running it is the purpose
        if not code.co_flags & inspect.CO_COROUTINE:
            return value
        if self._loop is None or self._loop.is_closed():
            self._loop = asyncio.new_event_loop()
            asyncio.set_event_loop(self._loop)
        task = self._loop.create_task(value)
        try:
            return self._loop.run_until_complete(task)
        except BaseException:
            if not task.done():
                task.cancel()
                with contextlib.suppress(BaseException):
                    self._loop.run_until_complete(task)
            raise

    def _show_figures(self) -> None:
        """Show every open figure of matplotlib, if the code uses it, and close it."""
        pyplot = sys.modules.get("matplotlib.pyplot")
        if pyplot is None or not hasattr(pyplot, "get_fignums"):
            return
        for number in pyplot.get_fignums():
            self._report_result(pyplot.figure(number), is_main=False)

    def _report_result(self, thing: Any, *, is_main: bool) -> None:
        fields = render(thing)
        if type(thing).__name__ == "Figure" and "matplotlib.pyplot" in sys.modules:
            image = io.BytesIO()
            thing.savefig(image, format="png", bbox_inches="tight")
            fields["png"] = as_json(image.getvalue())
            fields["chart"] = self._read_chart(thing)
            sys.modules["matplotlib.pyplot"].close(thing)
        self._report({"type": "result", "is_main_result": is_main, **fields})

    def _read_chart(self, figure: Any) -> dict[str, Any] | None:
        """Return what the figure shows as data; its picture is worth having without that, too."""
        if self._charts is None:
            self._charts = types.ModuleType("code_charts")
            exec(compile(self._charts_text, "<charts>", "exec"), vars(self._charts))  # noqa: S102
        with contextlib.suppress(Exception):
            chart: dict[str, Any] | None = self._charts.read_chart(figure)
            if len(json.dumps(chart)) <= CHART_MAX:
                return chart
        return None

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
        self._report(
            {
                "type": "error",
                "name": type(error).__name__,
                "value": cut(as_text(error, str)),
                "traceback": cut("".join(lines)),
            }
        )

    def _report(self, fields: dict[str, Any]) -> None:
        try:
            text = json.dumps(fields, default=repr, allow_nan=False)
        except ValueError:  # JSON has no NaN, and a caller's parser would refuse the whole line.
            text = json.dumps(without_nan(json.loads(json.dumps(fields, default=repr))))
        if len(text) > REPORT_MAX:
            size = REPORT_MAX // (1024 * 1024)
            note = f"[the result is left out: it is longer than {size} MB]"
            text = json.dumps({**fields, **dict.fromkeys(fields.keys() & HOOK_KINDS), "text": note})
        pending = text.encode() + b"\n"
        if os.getpid() == self._pid:
            while pending:
                pending = pending[os.write(self._reports, pending) :]


HOOK_KINDS = {*HOOKS.values(), "data", "extra", "chart"}


def without_nan(value: Any) -> Any:
    """Return the value with null for each NaN or infinity."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {name: without_nan(one) for name, one in value.items()}
    return [without_nan(one) for one in value] if isinstance(value, list) else value


def render(thing: Any) -> dict[str, Any]:
    """Return everything a thing can be shown as. A hook that fails is left out."""
    fields: dict[str, Any] = {}
    extra: dict[str, Any] = {}
    bundle = call_hook(thing, "_repr_mimebundle_")
    if isinstance(bundle, dict):
        for kind, value in bundle.items():
            if kind in KINDS:
                fields[KINDS[kind]] = as_json(value)
            else:
                extra[str(kind)] = as_json(value)
    for hook, field in HOOKS.items():
        value = call_hook(thing, hook)
        if value is not None and field not in fields:
            fields[field] = as_json(value)
    if isinstance(thing, (dict, list)) and "json" not in fields:
        with contextlib.suppress(TypeError, ValueError, RecursionError):
            fields["json"] = json.loads(json.dumps(thing))
    if type(thing).__module__.split(".")[0] == "pandas" and type(thing).__name__ == "DataFrame":
        with contextlib.suppress(Exception):
            table = json.loads(thing.to_json(orient="split", date_format="iso"))
            rows = table["data"]
            fields["data"] = {
                str(name): [row[at] for row in rows] for at, name in enumerate(table["columns"])
            }
    if extra:
        fields["extra"] = extra
    if "text" not in fields:
        fields["text"] = cut(thing if isinstance(thing, str) else as_text(thing, repr))
    return fields


def call_hook(thing: Any, name: str) -> Any:
    """Return what a display hook answers, None if the thing has none or it fails."""
    if isinstance(thing, type):
        return None
    try:
        hook = getattr(thing, name, None)
        value = hook() if callable(hook) else None
    except Exception:  # noqa: BLE001  # the code's own hook may raise anything
        return None
    # A hook may answer with metadata beside the data.
    return value[0] if isinstance(value, tuple) and len(value) == 2 else value


def as_json(value: Any) -> Any:
    return base64.b64encode(value).decode() if isinstance(value, bytes) else value


def as_text(thing: Any, how: Any) -> str:
    try:
        return str(how(thing))
    except Exception as error:  # noqa: BLE001  # the code's own text may raise anything
        return f"<{type(thing).__name__} that cannot be shown: {type(error).__name__}>"


def cut(text: str) -> str:
    if len(text) <= TEXT_MAX:
        return text
    return f"{text[:TEXT_MAX]}\n[the rest is left out: {len(text)} characters]"


def parse(code: str, name: str) -> tuple[ast.Module, str]:
    """Parse the code; where that fails and it has notebook lines (`!ls`, `%pip …`), those first."""
    try:
        return ast.parse(code, name), code
    except SyntaxError:
        plain = re.sub(
            r"^([ \t]*)(?:!|%(?=pip\b))(.*)$",
            lambda found: f"{found[1]}__shell__({found[2]!r})",
            code,
            flags=re.MULTILINE,
        )
        if plain == code:
            linecache.cache[name] = (len(code), None, code.splitlines(keepends=True), name)
            raise
        return ast.parse(plain, name), plain


def run_shell(line: str) -> None:
    """Run a line of shell as `!` does in notebooks."""
    if line.startswith("pip "):
        line = f"{sys.executable} -m {line}"
    subprocess.run(line, shell=True, check=False)  # noqa: S602  # the code's own line


if __name__ == "__main__":
    PythonKernel(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]).run()
