"""How clients reach the engine: the domain it answers with, and TLS if it was asked for."""

from __future__ import annotations

import asyncio
import logging
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import orjson

from sandkeeper.common.private_files import write_private
from sandkeeper.engine.names.certificates import LocalCertificates

_log = logging.getLogger("sandkeeper.engine")

TLS_DOMAIN = "sandkeeper.localhost"
"""The domain with TLS where none was chosen: no client accepts a certificate for `*.localhost`."""
RENEWAL_CHECK_S = 3600.0
FILE = "engine.names"


@dataclass(frozen=True, slots=True)
class TlsOptions:
    """Which certificate the engine has: a local one, or the user's."""

    certificate: Path | None = None
    key: Path | None = None


class CertificateSource(Protocol):
    """Where the engine's certificate comes from."""

    @property
    def chain_file(self) -> Path: ...

    @property
    def key_file(self) -> Path | None: ...

    def ensure(self) -> bool:
        """Make or look for the certificate; return whether it is another than before."""
        ...


class GivenCertificates:
    """The user's own certificate, read again when its file changes."""

    def __init__(self, chain: Path, key: Path | None) -> None:
        self.chain_file = chain
        self.key_file = key
        self._seen: tuple[int, int] | None = None

    def ensure(self) -> bool:
        found = self.chain_file.stat()
        before, self._seen = self._seen, (found.st_mtime_ns, found.st_ino)
        return before != self._seen


class Tls:
    """The engine's TLS context, with a certificate that is renewed while the engine runs."""

    def __init__(self, source: CertificateSource) -> None:
        self._source = source
        self.context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        # HTTP/2 clients fall back to what is offered here.
        self.context.set_alpn_protocols(["http/1.1"])
        source.ensure()
        self._load()

    def _load(self) -> None:
        self.context.load_cert_chain(self._source.chain_file, self._source.key_file)

    async def keep_fresh(self) -> None:
        """Renew the certificate when it is due. Connections that are open keep the old one."""
        while True:
            await asyncio.sleep(RENEWAL_CHECK_S)
            try:
                if await asyncio.to_thread(self._source.ensure):
                    self._load()
                    _log.info("the certificate was renewed")
            except (OSError, ValueError):
                _log.exception("the certificate could not be renewed; the next try is in an hour")


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The names of one engine."""

    domain: str
    """What responses call the domain, with a port unless it is chosen by the user without one."""
    tls: Tls | None
    ca_file: Path | None
    bundle_file: Path | None

    def describe(self) -> bytes:
        """Return what `sandkeeper engine env` needs to know."""
        return orjson.dumps(
            {
                "domain": self.domain,
                "tls": self.tls is not None,
                "ca": self.ca_file and str(self.ca_file),
                "bundle": self.bundle_file and str(self.bundle_file),
            }
        )

    def publish(self, data: Path) -> None:
        write_private(data / FILE, self.describe() + b"\n")


def open_endpoint(
    data: Path, *, host: str, port: int, domain: str, tls: TlsOptions | None
) -> Endpoint:
    """Load the certificate, or make it. Raises OSError (ssl.SSLError is one) if it is unusable."""
    if tls is None:
        return Endpoint(domain or f"localhost:{port}", None, None, None)
    shown = domain or f"{TLS_DOMAIN}:{port}"
    if tls.certificate is not None:
        return Endpoint(shown, Tls(GivenCertificates(tls.certificate, tls.key)), None, None)
    local = LocalCertificates(data / "tls", shown.partition(":")[0].lower(), host)
    return Endpoint(shown, Tls(local), local.ca_file, local.bundle_file)


def read_names(data: Path) -> dict[str, str | bool | None]:
    """Return what the last engine of this folder published; an empty dict before the first."""
    try:
        found: dict[str, str | bool | None] = orjson.loads((data / FILE).read_bytes())
    except (FileNotFoundError, ValueError):
        return {}
    return found
