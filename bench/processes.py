"""Start what the parts measure against: the shipped programs, each in its own folder."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

import httpx

KEY = "e2b_" + "0" * 40
OPERATOR_KEY = "operator-of-the-bench"
ENCRYPTION_KEY = "YmVuY2gtYmVuY2gtYmVuY2gtYmVuY2gtYmVuY2ghIT0="


class Options(TypedDict):
    """The options that the official SDK needs to reach one engine."""

    api_url: str
    sandbox_url: str
    api_key: str


@dataclass(frozen=True, slots=True)
class RunningEngine:
    url: str
    options: Options
    pid: int
    """The process at the start; a restart has another."""
    restart: Callable[[], float]
    """Kill the engine's process, start it again, and return the seconds until it answers."""


@dataclass(frozen=True, slots=True)
class RunningKeeper:
    """A keeper that answers at `url`; `key` is its operator's."""

    url: str
    port: int
    key: str
    pid: int

    def client(self) -> httpx.Client:
        headers = {"Authorization": f"Bearer {self.key}"}
        return httpx.Client(base_url=self.url, headers=headers, timeout=60)

    def resident_bytes(self) -> int:
        """Return the memory that the process holds now."""
        return read_resident_bytes(self.pid)

    def cpu_s(self) -> float:
        """Return the processor time of the process so far."""
        return read_cpu_s(self.pid)


@contextlib.contextmanager
def engine_running() -> Iterator[RunningEngine]:
    """Run a separate engine, and end its sandboxes before it stops."""
    with folder_of_its_own() as folder:
        port = free_port()
        url = f"http://127.0.0.1:{port}"
        words = ["engine", "--data", str(folder), "--port", str(port)]
        log = folder.parent / "log"
        with contextlib.ExitStack() as stack:

            def start() -> subprocess.Popen[bytes]:
                process = stack.enter_context(program_running(words, {"E2B_API_KEY": KEY}, log))
                wait_for(f"{url}/health", process, log)
                return process

            def restart() -> float:
                nonlocal process
                process.kill()
                process.wait()
                began = time.perf_counter()
                process = start()
                return time.perf_counter() - began

            process = start()
            options = Options(api_url=url, sandbox_url=url, api_key=KEY)
            engine = RunningEngine(url, options, process.pid, restart)
            try:
                yield engine
            finally:
                end_sandboxes(engine)


@contextlib.contextmanager
def keeper_running(
    *, provider_url: str, database: str = "", **settings: object
) -> Iterator[RunningKeeper]:
    """Run `sandkeeper serve` with this provider; use an SQLite file if no database is named."""
    with folder_of_its_own() as folder:
        port = free_port()
        given = {f"SANDKEEPER_{name.upper()}": str(value) for name, value in settings.items()}
        environment = {
            "SANDKEEPER_OPERATOR_KEY": OPERATOR_KEY,
            "SANDKEEPER_LOG_LEVEL": "warning",
            "E2B_API_URL": provider_url,
            "E2B_SANDBOX_URL": provider_url,
            "E2B_API_KEY": KEY,
            **given,
        }
        words = ["serve", "--data", str(folder), "--port", str(port)]
        if database:
            words += ["--database", database]
            environment["SANDKEEPER_FILES_URL"] = (folder.parent / "files").as_uri()
            environment.setdefault("SANDKEEPER_ENCRYPTION_KEY", ENCRYPTION_KEY)
        with program_running(words, environment, folder.parent / "log") as process:
            url = f"http://127.0.0.1:{port}"
            wait_for(f"{url}/healthz", process, folder.parent / "log")
            yield RunningKeeper(url, port, OPERATOR_KEY, process.pid)


@contextlib.contextmanager
def hung_provider() -> Iterator[str]:
    """Yield the address of a provider that accepts every connection and never answers."""
    with socket.create_server(("127.0.0.1", 0), backlog=1024) as listener:
        taken: list[socket.socket] = []

        def take() -> None:
            with contextlib.suppress(OSError):
                while True:
                    taken.append(listener.accept()[0])

        threading.Thread(target=take, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            # Closing alone would leave the thread in its accept.
            listener.shutdown(socket.SHUT_RDWR)
            for one in taken:
                one.close()


@contextlib.contextmanager
def folder_of_its_own() -> Iterator[Path]:
    """Yield an empty data folder; remove it and everything beside it at the end."""
    with tempfile.TemporaryDirectory(
        prefix="sandkeeper-bench-", ignore_cleanup_errors=True
    ) as folder:
        # A server that does not run as this user must be able to traverse it.
        Path(folder).chmod(0o755)
        yield Path(folder) / "data"


@contextlib.contextmanager
def program_running(
    words: list[str], environment: Mapping[str, str], log: Path
) -> Iterator[subprocess.Popen[bytes]]:
    """Run `sandkeeper` with these arguments, and end it with the block.

    It has its own session: Ctrl-C must reach only the bench, which ends what it started in the
    right order.
    """
    program = str(Path(sys.executable).with_name("sandkeeper"))
    plain = {k: v for k, v in os.environ.items() if not k.startswith(("SANDKEEPER_", "E2B_"))}
    with log.open("wb") as output:
        process = subprocess.Popen(
            [program, *words],
            env={**plain, **environment},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def end_sandboxes(engine: RunningEngine, within_s: float = 300) -> None:
    """End every sandbox, and return when the engine lists none: only then may its data go.

    One list is not enough: a sandbox that is created or wakes after it is only on the next one.
    """
    deadline = time.monotonic() + within_s
    with (
        httpx.Client(base_url=engine.url, headers={"X-API-KEY": KEY}, timeout=30) as client,
        ThreadPoolExecutor(8) as pool,
    ):
        while time.monotonic() < deadline:
            try:
                listed = client.get("/v2/sandboxes", params={"limit": 100}).json()
                if not listed:
                    return
                paths = [f"/sandboxes/{sandbox['sandboxID']}" for sandbox in listed]
                list(pool.map(client.delete, paths))
            except (httpx.HTTPError, ValueError) as error:
                print(f"the engine's sandboxes cannot be ended yet: {error}", file=sys.stderr)
                time.sleep(1)
    print("some sandboxes of the bench may still be alive", file=sys.stderr)


def wait_for(url: str, process: subprocess.Popen[bytes], log: Path, within_s: float = 60) -> None:
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        if process.poll() is not None:
            said = log.read_text(errors="replace")[-2000:]
            raise RuntimeError(f"{process.args!r} ended before it answered:\n{said}")
        with contextlib.suppress(httpx.HTTPError):
            if httpx.get(url).is_success:
                return
        time.sleep(0.05)
    raise RuntimeError(f"{url} did not answer within {within_s} s")


def read_resident_bytes(pid: int) -> int:
    """Return the memory that a process holds now."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def read_cpu_s(pid: int) -> float:
    """Return the processor time of a process so far, without that of its children."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
