"""The process that runs a language by its Jupyter kernel, such as R's, behind our pipes."""

from __future__ import annotations

import ctypes
import json
import os
import queue
import signal
import sys
from typing import Any

from jupyter_client import KernelManager

from sandkeeper.engine.interpreter.inside.reports import Reports

START_WITHIN_S = 60
# How each language sets a variable for a call, and forgets it. Java has properties instead.
VARIABLES = {
    "r": ("Sys.setenv({} = {})", "Sys.unsetenv({})"),
    "java": ("System.setProperty({}, {});", "System.clearProperty({});"),
    "julia": ("ENV[{}] = {};", "delete!(ENV, {});"),
}


class JupyterBridge:
    """Passes requests to the kernel, and what it publishes to the service."""

    def __init__(self, language: str, kernel: str, reports: Reports) -> None:
        self._language = language
        self._reports = reports
        self._manager = KernelManager(kernel_name=kernel)
        # It would outlive this process, which is ended by a signal.
        self._manager.start_kernel(cwd=os.getcwd(), preexec_fn=end_with_parent)  # noqa: PTH109
        self._client = self._manager.client()
        self._client.start_channels()
        self._client.wait_for_ready(timeout=START_WITHIN_S)

    def serve(self, requests: int) -> None:
        """Serve until the requests end or the kernel does."""
        for line in os.fdopen(requests, "rb"):
            request = json.loads(line)
            given: dict[str, str] = request["env"]
            self._set_variables(given, is_set=True)
            self._execute(request["code"], is_silent=False)
            self._set_variables(given, is_set=False)
            self._reports.write({"type": "done"})

    def interrupt(self, *_: Any) -> None:
        self._manager.interrupt_kernel()

    def _set_variables(self, given: dict[str, str], *, is_set: bool) -> None:
        how = VARIABLES.get(self._language)
        if how is None or not given:
            return
        name = str if self._language == "r" and is_set else json.dumps
        lines = [how[0 if is_set else 1].format(name(one), json.dumps(given[one])) for one in given]
        self._execute("\n".join(lines), is_silent=True)

    def _execute(self, code: str, *, is_silent: bool) -> None:
        asked = self._client.execute(code, silent=is_silent, allow_stdin=False)
        while True:
            try:
                message = self._client.get_iopub_msg(timeout=1)
            except queue.Empty:
                if not self._manager.is_alive():
                    os._exit(1)
                continue
            if message["parent_header"].get("msg_id") != asked:
                continue
            content: dict[str, Any] = message["content"]
            if message["msg_type"] == "status" and content["execution_state"] == "idle":
                return
            if not is_silent:
                self._pass_on(message["msg_type"], content)

    def _pass_on(self, kind: str, content: dict[str, Any]) -> None:
        if kind == "stream":
            stream = sys.stdout if content["name"] == "stdout" else sys.stderr
            stream.write(content["text"])
            stream.flush()
        elif kind in ("display_data", "execute_result"):
            is_main = kind == "execute_result" or self._language == "r"
            self._reports.write_result(content["data"], is_main=is_main)
        elif kind == "error":
            trace = "\n".join(content["traceback"])
            self._reports.write_error(content["ename"], content["evalue"], trace)


def end_with_parent() -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def main(requests: int, reports: int, chosen: str) -> None:
    os.set_inheritable(requests, False)
    language, _, kernel = chosen.partition(" ")
    bridge = JupyterBridge(language, kernel, Reports(reports))
    signal.signal(signal.SIGINT, bridge.interrupt)
    bridge.serve(requests)
