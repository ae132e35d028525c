"""What the parts measure against: the shipped programs, each in a folder of its own."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

import httpx
from e2b import Sandbox

if TYPE_CHECKING:
    from collections.abc import Iterator


class Options(TypedDict):
    """What the official SDK takes to reach one engine."""

    api_url: str
    sandbox_url: str
    api_key: str


@dataclass(frozen=True, slots=True)
class RunningEngine:
    url: str
    options: Options


@contextlib.contextmanager
def engine_running() -> Iterator[RunningEngine]:
    """An engine of its own, whose sandboxes are ended before it is."""
    key = "e2b_" + "0" * 40
    with tempfile.TemporaryDirectory(prefix="sandkeeper-bench-") as folder:
        port = free_port()
        url = f"http://127.0.0.1:{port}"
        program = str(Path(sys.executable).with_name("sandkeeper"))
        process = subprocess.Popen(
            [program, "engine", "--data", folder, "--port", str(port)],
            env={**os.environ, "E2B_API_KEY": key},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        engine = RunningEngine(url, Options(api_url=url, sandbox_url=url, api_key=key))
        try:
            wait_for(f"{url}/health", process)
            yield engine
        finally:
            end_sandboxes(engine)
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()


def end_sandboxes(engine: RunningEngine) -> None:
    with contextlib.suppress(httpx.HTTPError):
        pages = Sandbox.list(**engine.options)
        while pages.has_next:
            for listed in pages.next_items():
                Sandbox.kill(listed.sandbox_id, **engine.options)


def wait_for(url: str, process: subprocess.Popen[bytes], within_s: float = 60) -> None:
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RuntimeError(
                f"{process.args!r} ended with {process.returncode} before it answered"
            )
        with contextlib.suppress(httpx.HTTPError):
            if httpx.get(url).is_success:
                return
        time.sleep(0.05)
    raise RuntimeError(f"{url} did not answer within {within_s} s")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
