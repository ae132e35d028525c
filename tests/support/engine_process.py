"""The shipped engine as a subprocess, for tests that drive it from outside."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx

from support.isolation import IS_GVISOR
from support.process_leaks import end_all

START_WITHIN_S = 60


class Engine:
    """`sandkeeper engine` over its own data folder, on a port of its own.

    The port is chosen by the kernel at the first start and kept over restarts.
    """

    def __init__(self, data: Path, *options: str) -> None:
        self.data = data
        self.options = options
        self.port = 0
        self.process: subprocess.Popen[bytes] | None = None
        self._log = data.parent / f"{data.name}.log"

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def key(self) -> str:
        return (self.data / "engine.key").read_text().strip()

    @property
    def env(self) -> dict[str, str]:
        """What the official SDKs need in their environment."""
        return {
            "E2B_API_URL": self.url,
            "E2B_SANDBOX_URL": self.url,
            "E2B_VOLUME_API_URL": self.url,
            "E2B_API_KEY": self.key,
        }

    def read_tls_env(self) -> dict[str, str]:
        """Return what `sandkeeper engine env --tls` exports."""
        said = subprocess.run(
            [*self.command(), "env", "--tls", "--data", str(self.data)],
            check=True,
            capture_output=True,
            text=True,
            env={k: v for k, v in os.environ.items() if not k.startswith("E2B_")},
        ).stdout
        lines = [shlex.split(line) for line in said.splitlines()]
        return dict(words[1].split("=", 1) for words in lines if words[0] == "export")  # type: ignore[misc]  # two parts each

    def sdk_options(self) -> dict[str, Any]:
        """What the Python SDK's calls take as keyword arguments."""
        return {"api_url": self.url, "sandbox_url": self.url, "api_key": self.key}

    def client(self, **options: Any) -> httpx.Client:
        """Return a plain HTTP client of the control plane."""
        headers = {"X-API-KEY": self.key, **options.pop("headers", {})}
        return httpx.Client(base_url=self.url, headers=headers, timeout=60, **options)

    @property
    def log(self) -> str:
        """All that the engine has said so far."""
        return self._log.read_text(errors="replace") if self._log.exists() else ""

    def command(self) -> list[str]:
        """Return the words that run an engine, without its options."""
        return [sys.executable, "-m", "sandkeeper.cli.main", "engine"]

    def start(self) -> Engine:
        """Start, and return once it answers. Raises AssertionError with its log otherwise."""
        said_before = len(self.log)
        command = [
            *self.command(),
            *("--data", str(self.data), "--port", str(self.port), *self.options),
            *(("--runtime", "runsc") if IS_GVISOR else ()),
        ]
        environment = {k: v for k, v in os.environ.items() if not k.startswith("E2B_")}
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment
            )
        deadline = time.monotonic() + START_WITHIN_S
        while "engine ready at" not in self.log[said_before:]:
            assert self.process.poll() is None, f"the engine ended:\n{self.log}"
            assert time.monotonic() < deadline, f"the engine does not start:\n{self.log}"
            time.sleep(0.02)
        if not self.port:
            said = self.log[said_before:]
            self.port = int(said.partition("http://127.0.0.1:")[2].split()[0])
        assert httpx.get(f"{self.url}/health", timeout=30).status_code == 200
        return self

    def kill9(self) -> None:
        """End the engine's process as a crash does; its sandboxes live on."""
        self._end(signal.SIGKILL)

    def terminate(self) -> None:
        """End the engine's process as an operator does; its sandboxes live on."""
        self._end(signal.SIGTERM)

    def restart(self) -> Engine:
        """Start again over the same data, on the same port; a living process is ended first."""
        if self.process is not None:
            self.terminate()
        return self.start()

    def stop(self) -> None:
        """End the engine and every sandbox, and remove its data. Leaves nothing behind."""
        try:
            if self.process is not None:
                self.terminate()
        finally:
            end_all(self.data)
            shutil.rmtree(self.data, ignore_errors=True)

    def kill_all(self) -> None:
        """Kill every sandbox of this engine."""
        with self.client() as client:
            while True:
                listed = client.get("/v2/sandboxes").json()
                if not listed:
                    return
                for sandbox in listed:
                    client.delete(f"/sandboxes/{sandbox['sandboxID']}")

    def _end(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise AssertionError(f"the engine does not end:\n{self.log}") from None
        self.process = None
