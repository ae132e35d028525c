"""The PostgreSQL and the PgBouncer of this machine, for the length of a block."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from support.eventually import eventually_sync

PROGRAMS = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"))
PGBOUNCER = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
SERVER_USER = "postgres"

needs_installed_postgres = pytest.mark.skipif(
    not PROGRAMS or (os.geteuid() == 0 and shutil.which("runuser") is None),
    reason="no PostgreSQL installed (Debian: the package postgresql)",
)
needs_pgbouncer = pytest.mark.skipif(
    PGBOUNCER is None, reason="no PgBouncer installed (Debian: the package pgbouncer)"
)


def find_free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def own_folder() -> Iterator[Path]:
    """A folder that the server's user may enter, which pytest's own are not."""
    folder = Path(tempfile.mkdtemp(prefix="sandkeeper-server-"))
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def run_as() -> list[str]:
    """The words before a command that root may not run."""
    return ["runuser", "-u", SERVER_USER, "--"] if os.geteuid() == 0 else []


def give_to_server(folder: Path) -> None:
    if run_as():
        for one in (folder, *folder.iterdir()):
            shutil.chown(one, SERVER_USER)


@contextmanager
def installed_postgres(
    *, hba: str = "host all all 127.0.0.1/32 trust", prepare: Callable[[Path], str] | None = None
) -> Iterator[int]:
    """A server of its own with the superuser `keeper`; yields its port.

    `prepare` puts files into its folder and returns further options.
    """
    with own_folder() as folder:
        further = prepare(folder) if prepare else ""
        give_to_server(folder)
        data, programs, port = folder / "data", PROGRAMS[-1].parent, find_free_port()
        initdb = [programs / "initdb", "-D", data, "-U", "keeper", "--auth=trust", "-N"]
        subprocess.run([*run_as(), *initdb], check=True, capture_output=True, cwd="/")
        (data / "pg_hba.conf").write_text(f"{hba}\n")
        options = (
            f"{further} -c listen_addresses=127.0.0.1 -c unix_socket_directories= -c fsync=off "
            f"-p {port}"
        )
        control = [*run_as(), programs / "pg_ctl", "-D", data, "-w", "-l", folder / "log"]
        subprocess.run([*control, "-o", options, "start"], check=True, capture_output=True, cwd="/")
        try:
            yield port
        finally:
            stop = [*control, "-m", "immediate", "stop"]
            subprocess.run(stop, check=True, capture_output=True, cwd="/")


@contextmanager
def pgbouncer(server_port: int, *, sessions: int) -> Iterator[int]:
    """PgBouncer in transaction mode before a server, with so many sessions; yields its port."""
    assert PGBOUNCER is not None
    with own_folder() as folder:
        port = find_free_port()
        (folder / "users").write_text('"keeper" ""\n')
        (folder / "pgbouncer.ini").write_text(
            f"[databases]\n* = host=127.0.0.1 port={server_port}\n"
            f"[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\n"
            f"auth_type = trust\nauth_file = {folder}/users\nlogfile = {folder}/log\n"
            f"pool_mode = transaction\ndefault_pool_size = {sessions}\nmax_client_conn = 200\n"
        )
        give_to_server(folder)
        process = subprocess.Popen(
            [*run_as(), PGBOUNCER, "-q", str(folder / "pgbouncer.ini")],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            eventually_sync(lambda: _answers(port))
            yield port
        finally:
            process.terminate()
            process.wait()


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
