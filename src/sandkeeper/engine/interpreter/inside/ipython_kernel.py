"""The process that runs Python code where IPython is installed: its shell behind our pipes.

The shell runs inside an event loop, as in a notebook: `await` works everywhere, and what the code
left running in the loop goes on between calls.
"""

from __future__ import annotations

import asyncio
import builtins
import contextlib
import functools
import getpass
import importlib
import importlib.machinery
import json
import os
import signal
import site
import sys
from collections.abc import Iterator
from typing import Any

from IPython.core.displayhook import DisplayHook
from IPython.core.displaypub import DisplayPublisher
from IPython.core.error import StdinNotImplementedError
from IPython.core.formatters import BaseFormatter, JSONFormatter
from IPython.core.interactiveshell import InteractiveShell
from IPython.core.page import as_hook, display_page
from traitlets import ObjectName, Type, Unicode
from traitlets.config import Config

from sandkeeper.engine.interpreter.inside.reports import LentVariables, Reports, cut

CHART_MAX = 4 * 1024 * 1024
ENVIRONMENT = {
    "MPLBACKEND": "module://matplotlib_inline.backend_inline",
    "PLOTLY_RENDERER": "plotly_mimetype+notebook_connected",
    "PAGER": "cat",
    "GIT_PAGER": "cat",
    "TERM": "xterm-color",
}


class ReportingPublisher(DisplayPublisher):
    """What `display` sends, as reports."""

    def publish(self, data: dict[str, Any], *_: Any, **__: Any) -> None:
        self.shell.show(data, is_main=False)

    def clear_output(self, wait: bool = False) -> None:  # IPython's own
        """Do nothing: what was sent is with the caller."""


class ReportingDisplayHook(DisplayHook):
    """The value of the last expression, as a report."""

    def write_output_prompt(self) -> None:
        pass

    def write_format_data(self, format_dict: dict[str, Any], md_dict: Any = None) -> None:  # noqa: ARG002
        self.shell.show(format_dict, is_main=True)

    def log_output(self, format_dict: dict[str, Any]) -> None:
        """Keep nothing of what was shown; `Out` has the value."""

    def finish_displayhook(self) -> None:
        self._is_active = False


class KernelShell(InteractiveShell):
    """IPython's shell without a terminal."""

    display_pub_class = Type(ReportingPublisher)
    displayhook_class = Type(ReportingDisplayHook)
    reports: Reports
    is_leaving = False

    def show(self, content: dict[str, Any], *, is_main: bool) -> None:
        sys.stdout.flush()
        self.reports.write_result(content, is_main=is_main)

    def enable_gui(self, gui: Any = None) -> None:
        """Do nothing: there is no screen."""

    def ask_exit(self) -> None:
        self.is_leaving = True

    def system(self, cmd: str) -> None:
        """Run a line of shell; what it installed can be imported at once."""
        sys.stdout.flush()
        self.system_raw(cmd)
        find_new_packages()

    @contextlib.contextmanager
    def _tee(self, channel: str) -> Iterator[None]:  # noqa: ARG002
        """Keep nothing: IPython would hold all that was ever printed in memory."""
        yield

    def _showtraceback(self, etype: type, evalue: BaseException, stb: list[str]) -> None:
        sys.stdout.flush()
        try:
            value = str(evalue)
        except Exception as broken:  # noqa: BLE001  # the code's own text may raise anything
            value = f"<{etype.__name__} that cannot be shown: {type(broken).__name__}>"
        self.reports.write_error(etype.__name__, value, "\n".join(stb))


# Libraries ask for this name, a notebook's, before they show anything richly.
KernelShell.__name__ = KernelShell.__qualname__ = "ZMQInteractiveShell"


class DataFormatter(BaseFormatter):
    """Tables as E2B's `data`: the values of each column."""

    format_type = Unicode("e2b/data")
    print_method = ObjectName("_repr_e2b_data_")
    _return_type = (dict, str)


class ChartFormatter(BaseFormatter):
    """Figures as E2B's `chart`. The module that reads them is made with the first one."""

    format_type = Unicode("e2b/chart")
    print_method = ObjectName("_repr_e2b_chart_")
    _return_type = (dict, str)
    text = ""

    def __call__(self, obj: Any) -> Any:
        # Asked by hand: `%matplotlib` takes figures out of every formatter's table.
        figures = sys.modules.get("matplotlib.figure")
        if figures is None or not isinstance(obj, figures.Figure):
            return super().__call__(obj)
        # Its picture is worth having without the data, too.
        with contextlib.suppress(Exception):
            chart = self._read(obj)
            if len(json.dumps(chart)) <= CHART_MAX:
                return chart
        return None

    @functools.cached_property
    def _read(self) -> Any:
        names: dict[str, Any] = {}
        exec(compile(self.text, "<charts>", "exec"), names)  # noqa: S102
        return names["read_chart"]


class PlainJsonFormatter(JSONFormatter):
    """Dicts and lists as JSON as well, where they hold nothing else."""

    def __call__(self, obj: Any) -> Any:
        if isinstance(obj, (dict, list)):
            with contextlib.suppress(TypeError, ValueError, RecursionError):
                return json.loads(json.dumps(obj, default=as_plain))
        return super().__call__(obj)


def as_plain(value: Any) -> Any:
    """Return numpy's numbers and arrays as Python's."""
    if type(value).__module__ == "numpy" and hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError


def show_text(text: str, printer: Any, _is_cycle: bool) -> None:  # IPython's own
    """Show a text as usual; cut a very long one before IPython copies it several times."""
    shortened = cut(text)
    printer.text(repr(text) if shortened is text else shortened)


def read_table(table: Any) -> dict[str, Any]:
    split = json.loads(table.to_json(orient="split", date_format="iso"))
    rows = split["data"]
    return {str(name): [row[at] for row in rows] for at, name in enumerate(split["columns"])}


class PicturesShown:
    """Shows a picture of PIL that code shows or saves: finds `PIL.Image` once, and adds that."""

    def find_spec(self, fullname: str, path: Any = None, _target: Any = None) -> Any:
        if fullname != "PIL.Image":
            return None
        sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(fullname, path)
        if spec is None or spec.loader is None:
            return spec
        load = spec.loader.exec_module

        def load_and_add(module: Any) -> None:
            load(module)
            self._add_to(module.Image)

        spec.loader.exec_module = load_and_add  # type: ignore[method-assign]
        return spec

    def _add_to(self, image: Any) -> None:
        display = builtins.display  # type: ignore[attr-defined]  # IPython puts it there
        save = image.save

        def save_and_show(self: Any, fp: Any, format: Any = None, **options: Any) -> None:  # noqa: A002
            if isinstance(fp, str):
                display(self)
            save(self, fp, format, **options)

        image.save = save_and_show
        image.show = lambda self, *_, **__: display(self)


class IPythonKernel:
    """Reads requests, runs them in one shell, and reports."""

    def __init__(self, reports: Reports, charts_text: str) -> None:
        self._reports = reports
        config = Config()
        config.HistoryManager.enabled = False
        config.InteractiveShell.colors = "NoColor"
        self._shell = KernelShell.instance(config=config)
        self._shell.reports = reports
        self._shell.set_hook("show_in_pager", as_hook(display_page), 99)
        self._add_formatters(charts_text)
        self._running: asyncio.Task[Any] | None = None
        sys.meta_path.insert(0, PicturesShown())

    def _add_formatters(self, charts_text: str) -> None:
        formatter = self._shell.display_formatter
        table, chart = DataFormatter(parent=formatter), ChartFormatter(parent=formatter)
        chart.text = charts_text
        for module in ("pandas", "pandas.core.frame"):
            table.for_type_by_name(module, "DataFrame", read_table)
        formatter.formatters["text/plain"].for_type(str, show_text)
        formatter.formatters["application/json"] = PlainJsonFormatter(parent=formatter)
        formatter.formatters["e2b/data"] = table
        # The last one: only a figure that was drawn has labels at its ticks.
        formatter.formatters["e2b/chart"] = chart

    async def serve(self, requests: asyncio.StreamReader) -> None:
        """Serve until the requests end."""
        while line := await requests.readline():
            request = json.loads(line)
            self._shell.execution_count = request["number"]
            self._running = asyncio.ensure_future(self._execute(request["code"], request["env"]))
            with contextlib.suppress(asyncio.CancelledError):
                await self._running
            self._running = None
            if self._reports.is_forked() or self._shell.is_leaving:
                os._exit(0)
            self._reports.write({"type": "done"})

    async def _execute(self, code: str, env: dict[str, str]) -> None:
        with LentVariables(env):
            find_new_packages()
            try:
                await self._run_cell(code)
            except KeyboardInterrupt:
                self._shell.showtraceback()
            for stream in (sys.stdout, sys.stderr):
                with contextlib.suppress(Exception):
                    stream.flush()

    async def _run_cell(self, code: str) -> None:
        shell, failed, cell = self._shell, None, code
        try:
            cell = shell.transform_cell(code)
        except Exception:  # noqa: BLE001  # the shell reports it with the cell
            failed = sys.exc_info()
        prepared = {"transformed_cell": cell, "preprocessing_exc_tuple": failed}
        if not shell.should_run_async(code, **prepared):
            shell.run_cell(code, store_history=True)
            return
        result = await shell.run_cell_async(code, store_history=True, **prepared)
        shell.events.trigger("post_execute")
        shell.events.trigger("post_run_cell", result)

    def interrupt(self, _number: int, frame: Any) -> None:
        """Break the code where it is, or the waiting of a cell that awaits."""
        if self._running is None:
            return
        inside = asyncio.Handle._run.__code__  # below it is the code's frame
        while frame is not None and frame.f_code is not inside:
            frame = frame.f_back
        if frame is not None:
            raise KeyboardInterrupt
        self._running.cancel()


def find_new_packages() -> None:
    """See what was installed since the start: also where the user's own folder is new."""
    own = site.getusersitepackages()
    if own not in sys.path and os.path.isdir(own):  # noqa: PTH112  # it is text here
        before = list(sys.path)
        site.addsitedir(own)
        # In its usual place: before the packages of the system.
        added = [one for one in sys.path if one not in before]
        at = next((n for n, one in enumerate(before) if one.endswith("-packages")), len(before))
        sys.path[:] = before[:at] + added + before[at:]
    importlib.invalidate_caches()


def refuse_input(*_: Any, **__: Any) -> str:
    raise StdinNotImplementedError("code that runs here gets no input")


async def serve(kernel: IPythonKernel, requests: int) -> None:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=2**30)
    pipe = os.fdopen(requests, "rb")
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), pipe)
    await kernel.serve(reader)


def main(requests: int, reports: int, charts_text: str) -> None:
    os.set_inheritable(requests, False)
    sys.argv = [""]
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    builtins.input = getpass.getpass = refuse_input
    kernel = IPythonKernel(Reports(reports), charts_text)
    signal.signal(signal.SIGINT, kernel.interrupt)
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    serving = loop.create_task(serve(kernel, requests))
    while not serving.done():
        # An interrupt that hits a task which the code left running ends the loop, not the kernel.
        with contextlib.suppress(KeyboardInterrupt, SystemExit):
            loop.run_until_complete(serving)
    os._exit(0)
