"""A whole Sandkeeper as people run it: `sandkeeper up`, or `serve` beside a given engine."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any, Self

import httpx
from pydantic import SecretStr

from sandkeeper.hosting.data_keys import open_data_keys
from sandkeeper.settings import Settings
from sandkeeper.store import open_store
from support.engine_process import Engine
from support.preloaded import PreloadedProcess
from support.process_leaks import end_all

KEY_VARIABLE = "SANDKEEPER_ENCRYPTION_KEY"
ENCRYPTION_KEY = "c2FuZGtlZXBlci10ZXN0LWVuY3J5cHRpb24ta2V5ISE="
"""The key of replicas on PostgreSQL; a keeper on SQLite makes its own."""

COMMAND = [sys.executable, "-m", "sandkeeper.cli.main"]


class Keeper:
    """`sandkeeper up` on free ports with its own data folder.

    With an `engine` it is `sandkeeper serve` and that engine is its provider. `stop` ends every
    sandbox of an engine of its own, so that nothing is left behind; `kill9` leaves them all.
    """

    start_within_s = 120

    def __init__(
        self, data: Path, *flags: str, engine: Engine | None = None, **settings: object
    ) -> None:
        self.data = data
        self.log = data.parent / f"{data.name}.log"
        self._flags = flags
        self._engine = engine
        self._settings = {
            f"SANDKEEPER_{name.upper()}": str(value) for name, value in settings.items()
        }
        self._process: subprocess.Popen[bytes] | PreloadedProcess | None = None
        self.url = ""
        self.engine_url = ""

    @property
    def environment(self) -> dict[str, str]:
        """The variables with which a command reaches this keeper."""
        plain = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("SANDKEEPER_", "E2B_"))
        }
        return {
            **plain,
            **(self._engine.env if self._engine else {}),
            "SANDKEEPER_DATA": str(self.data),
            **({"SANDKEEPER_URL": self.url} if self.url else {}),
            **({} if self.database.startswith("sqlite") else {KEY_VARIABLE: ENCRYPTION_KEY}),
            **self._settings,
        }

    @property
    def database(self) -> str:
        """The URL of its database."""
        if "--database" in self._flags:
            return self._flags[self._flags.index("--database") + 1]
        return self._settings.get("SANDKEEPER_DATABASE", f"sqlite:///{self.data}/sandkeeper.db")

    def read_fact(self, name: str) -> Any:
        """A stored value by name, decrypted as the keeper does it."""
        given = self.environment.get(KEY_VARIABLE)
        settings = Settings(data=self.data, encryption_key=SecretStr(given) if given else None)

        async def read() -> Any:
            async with open_store(self.database, migrate=False) as store:
                await open_data_keys(store, settings, now=datetime.now(UTC))
                return await store.key_values.find(name)

        return asyncio.run(read())

    @property
    def dashboard_url(self) -> str:
        """Where a browser finds the dashboard: on a host name of its own."""
        return self.url.replace("127.0.0.1", "sandkeeper.localhost")

    @contextmanager
    def browser(self) -> Iterator[httpx.Client]:
        """A client without a key that speaks as a browser on the dashboard's host does."""
        headers = {"Host": self.dashboard_url.removeprefix("http://")}
        with httpx.Client(base_url=self.url, headers=headers, timeout=60) as client:
            yield client

    @property
    def key(self) -> str:
        return (self.data / "operator.key").read_text().strip()

    @property
    def engine_key(self) -> str:
        if self._engine is not None:
            return self._engine.key
        return (self.data / "engine" / "engine.key").read_text().strip()

    @property
    def output(self) -> str:
        return self.log.read_text() if self.log.exists() else ""

    def start(self) -> Self:
        """Start it and wait until it is ready."""
        self.data.parent.mkdir(parents=True, exist_ok=True)
        verb = ["up", "--engine-port", "0"] if self._engine is None else ["serve"]
        with self.log.open("wb") as output:
            words = [*verb, "--data", str(self.data), "--port", "0", *self._flags]
            self._process = self._begin(words, stdout=output, stderr=output)
        deadline = time.monotonic() + self.start_within_s
        while time.monotonic() < deadline:
            found = re.search(r"API\s+(http://\S+)/api\s", self.output)
            if found:
                self.url = found.group(1)
                engine = re.search(r"engine\s+(http://\S+)", self.output)
                self.engine_url = engine.group(1) if engine else ""
                if self._engine is not None:
                    self.engine_url = self._engine.url
                return self
            if self._process.poll() is not None:
                break
            time.sleep(0.05)
        self.kill9()
        raise AssertionError(f"sandkeeper up did not start:\n{self.output}")

    def client(self, key: str | None = None, **options: Any) -> httpx.Client:
        """An HTTP client with the operator's key, or another one."""
        headers = {"Authorization": f"Bearer {self.key if key is None else key}"}
        return httpx.Client(base_url=self.url, headers=headers, timeout=60, **options)

    def run(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run one command of the command line against this keeper."""
        with tempfile.TemporaryFile() as stdout, tempfile.TemporaryFile() as stderr:
            process = self._begin(arguments, stdout=stdout, stderr=stderr)
            try:
                code = process.wait(120)
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGKILL)
                raise
            said = [(file.seek(0), file.read().decode())[1] for file in (stdout, stderr)]
        done = subprocess.CompletedProcess(arguments, code, *said)
        if check and done.returncode != 0:
            raise AssertionError(f"{arguments} ended with {done.returncode}: {done.stderr}")
        return done

    def _begin(
        self, arguments: Sequence[str], *, stdout: IO[bytes], stderr: IO[bytes]
    ) -> subprocess.Popen[bytes] | PreloadedProcess:
        """Begin a command; what a library is loaded before is a program of its own."""
        environment = self.environment
        if "LD_PRELOAD" not in environment:
            return PreloadedProcess(arguments, env=environment, stdout=stdout, stderr=stderr)
        return subprocess.Popen(
            [*COMMAND, *arguments],
            env=environment,
            stdout=stdout,
            stderr=stderr,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )

    def sdk_options(self) -> dict[str, Any]:
        """What the official SDK needs to act behind the keeper's back."""
        return {
            "api_key": self.engine_key,
            "api_url": self.engine_url,
            "sandbox_url": self.engine_url,
        }

    def engine_client(self) -> httpx.Client:
        """The provider's own API: the "dashboard" in which a user kills a sandbox."""
        headers = {"X-API-KEY": self.engine_key}
        return httpx.Client(base_url=self.engine_url, headers=headers, timeout=60)

    def kill9(self) -> None:
        """End the keeper as a power cut would. Sandboxes stay."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait(30)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal, as SIGSTOP to let it stand still; one that has ended is left alone."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(number)

    def instances(self) -> list[dict[str, Any]]:
        """All that the provider has, running and paused."""
        with self.engine_client() as engine:
            found: list[dict[str, Any]] = engine.get("/v2/sandboxes", params={"limit": 100}).json()
            return found

    def interrupt(self) -> int:
        """Press Ctrl-C and give the exit code."""
        assert self._process is not None
        self._process.send_signal(signal.SIGINT)
        return self._process.wait(60)

    def terminate(self) -> int:
        """Stop it as a service manager does and give the exit code."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(60)

    def stop(self) -> None:
        """End everything that this keeper and its own engine hold, also after `kill9`."""
        if self._process is None:
            return
        try:
            if self._process.poll() is None:
                self._process.send_signal(signal.SIGTERM)
                self._process.wait(60)
        except subprocess.TimeoutExpired:
            self.kill9()
        finally:
            self._process = None
            if self._engine is None:
                end_all(self.data / "engine")


@contextmanager
def keeping(
    data: Path, *flags: str, engine: Engine | None = None, **settings: object
) -> Iterator[Keeper]:
    """A keeper for the length of a block."""
    keeper = Keeper(data, *flags, engine=engine, **settings)
    try:
        yield keeper.start()
    finally:
        keeper.stop()
