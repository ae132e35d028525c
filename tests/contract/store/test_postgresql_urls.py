"""PostgreSQL as platform teams run it: encrypted, several hosts, a URL as libpq reads it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from sqlalchemy import text

from sandkeeper.domain.errors import InvalidSettingsError, StoreUnavailableError
from sandkeeper.store import open_store
from sandkeeper.store.database import Database
from sandkeeper.store.events import CHANNEL
from support.installed_postgres import (
    find_free_port,
    installed_postgres,
    needs_installed_postgres,
)

pytestmark = needs_installed_postgres


@dataclass(frozen=True, slots=True)
class TlsServer:
    """A real PostgreSQL that takes encrypted connections only."""

    port: int
    certificate: Path


@pytest.fixture(scope="module")
def server() -> Iterator[TlsServer]:
    found: list[Path] = []

    def prepare(folder: Path) -> str:
        found.append(make_certificate(folder))
        return f"-c ssl=on -c ssl_cert_file={found[0]} -c ssl_key_file={folder / 'server.key'}"

    with installed_postgres(hba="hostssl all all 127.0.0.1/32 trust", prepare=prepare) as port:
        yield TlsServer(port, found[0])


def make_certificate(folder: Path) -> Path:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(datetime(2020, 1, 1, tzinfo=UTC))
        .not_valid_after(datetime(2099, 1, 1, tzinfo=UTC))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    page, secret = folder / "server.crt", folder / "server.key"
    page.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    secret.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    secret.chmod(0o600)
    return page


async def ask(database: Database, question: str) -> str:
    async with database.reading() as connection:
        return str((await connection.execute(text(question))).scalar_one())


async def write_as_on_a_standby(database: Database) -> None:
    async with database.writing() as connection:
        await connection.execute(text("SET TRANSACTION READ ONLY"))
        await connection.execute(text("CREATE TABLE refused (id int)"))


async def test_an_encrypted_url_with_the_options_of_libpq_serves_a_whole_store(
    server: TlsServer,
) -> None:
    url = (
        f"postgresql://keeper@localhost:{server.port}/postgres?sslmode=verify-full"
        f"&sslrootcert={server.certificate}&application_name=sandkeeper-eu"
        "&options=-c%20search_path%3Dpublic"
    )
    async with open_store(url) as store:
        assert not any((await store.counts.by_state()).values())
        encrypted = "SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()"
        assert await ask(store.database, encrypted) == "True"
        assert await ask(store.database, "SHOW application_name") == "sandkeeper-eu"
        assert await ask(store.database, "SHOW search_path") == "public"
        assert await ask(store.database, "SHOW statement_timeout") == "5s"
        heard = asyncio.Event()
        async with store.events.listening(lambda _notice: heard.set()):
            async with store.database.writing() as connection:
                await connection.execute(text(f"NOTIFY {CHANNEL}, 'here'"))
            async with asyncio.timeout(10):
                await heard.wait()


async def test_of_several_hosts_the_one_that_takes_writes_is_used(server: TlsServer) -> None:
    dead = find_free_port()
    url = (
        f"postgresql://keeper@127.0.0.1:{dead},127.0.0.1:{server.port}/postgres"
        "?sslmode=require&target_session_attrs=read-write"
    )
    database = Database(url)
    try:
        assert await ask(database, "SELECT 1") == "1"
    finally:
        await database.close()


async def test_after_a_failover_the_connection_to_the_old_primary_is_dropped(
    server: TlsServer,
) -> None:
    database = Database(f"postgresql://keeper@127.0.0.1:{server.port}/postgres?sslmode=require")
    try:
        before = await ask(database, "SELECT pg_backend_pid()")
        with pytest.raises(StoreUnavailableError):
            await write_as_on_a_standby(database)
        assert await ask(database, "SELECT pg_backend_pid()") != before
    finally:
        await database.close()


@pytest.mark.parametrize(
    ("query", "names"),
    [("sslmode=sometimes", "sslmode"), ("sslmode=verify-ca&sslrootcert=/no/such.pem", "such.pem")],
)
async def test_a_url_that_cannot_work_is_refused_with_the_part_that_is_wrong(
    server: TlsServer, query: str, names: str
) -> None:
    url = f"postgresql://keeper@127.0.0.1:{server.port}/postgres?{query}"
    with pytest.raises(InvalidSettingsError, match=names):
        async with open_store(url):
            pass
