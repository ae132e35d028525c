"""A local certificate authority and the engine's wildcard certificate, in the data folder.

    tls/authority.pem   key and certificate of the authority, 0600; kept over restarts
    tls/server.pem      key and certificate of the engine, 0600; renewed long before it ends
    tls/ca.pem          the authority's certificate, for NODE_EXTRA_CA_CERTS and browsers
    tls/bundle.pem      this machine's authorities and ours, for SSL_CERT_FILE

The authority can vouch for the engine's own names only (a name constraint), so one that is stolen
or was installed in a browser is good for no other site.
"""

from __future__ import annotations

import contextlib
import ipaddress
import ssl
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID

from sandkeeper.common.private_files import create_private_folder, write_private
from sandkeeper.engine.names.certificate_parts import (
    count_days_left,
    load_pair,
    make_name,
    make_usage,
    start_certificate,
    to_pem,
)

AUTHORITY_DAYS = 3650
AUTHORITY_RENEW_DAYS = 365
SERVER_DAYS = 90
SERVER_RENEW_DAYS = 30
_LOOPBACK = ("127.0.0.1", "::1")

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class LocalCertificates:
    """The certificates for one domain, made where they are missing, about to end or of another.

    `address` is where the engine listens; a certificate for it is made as well if it is one.
    """

    def __init__(self, folder: Path, domain: str, address: str) -> None:
        self._folder = folder
        self._names = tuple(
            dict.fromkeys((f"*.{domain}", domain, "localhost", "*.sandkeeper.localhost"))
        )
        self._roots = tuple(dict.fromkeys((domain, "localhost")))
        self._addresses = _list_addresses(address)

    @property
    def ca_file(self) -> Path:
        return self._folder / "ca.pem"

    @property
    def bundle_file(self) -> Path:
        return self._folder / "bundle.pem"

    @property
    def chain_file(self) -> Path:
        """Return the file with the engine's key and certificate."""
        return self._folder / "server.pem"

    @property
    def key_file(self) -> Path | None:
        """Return None: the key is in the same file."""
        return None

    def ensure(self) -> bool:
        """Make what is missing or due; return whether the engine's certificate is a new one."""
        create_private_folder(self._folder)
        authority = load_pair(self._folder / "authority.pem")
        if authority is None or not self._is_good_authority(authority[1]):
            authority = self._make_authority()
            write_private(self._folder / "authority.pem", to_pem(*authority))
        _replace(self.ca_file, authority[1].public_bytes(serialization.Encoding.PEM))
        _replace(self.bundle_file, _read_system_bundle() + self.ca_file.read_bytes())
        present = load_pair(self.chain_file)
        if present is not None and self._is_good_server(present[1], authority[1]):
            return False
        write_private(self.chain_file, to_pem(*self._make_server(*authority)))
        return True

    def _is_good_authority(self, found: x509.Certificate) -> bool:
        permitted = found.extensions.get_extension_for_class(x509.NameConstraints).value
        return count_days_left(found) > AUTHORITY_RENEW_DAYS and set(
            permitted.permitted_subtrees or ()
        ) == set(self._list_permitted())

    def _is_good_server(self, found: x509.Certificate, authority: x509.Certificate) -> bool:
        named = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        try:
            found.verify_directly_issued_by(authority)
        except Exception:  # noqa: BLE001 - whatever is wrong with it, a new one is made
            return False
        return count_days_left(found) > SERVER_RENEW_DAYS and set(named) == set(
            self._list_alternatives()
        )

    def _list_permitted(self) -> list[x509.GeneralName]:
        networks = [ipaddress.ip_network(one) for one in self._addresses]
        return [*map(x509.DNSName, self._roots), *map(x509.IPAddress, networks)]

    def _list_alternatives(self) -> list[x509.GeneralName]:
        return [*map(x509.DNSName, self._names), *map(x509.IPAddress, self._addresses)]

    def _make_authority(self) -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate]:
        key = ec.generate_private_key(ec.SECP256R1())
        name = make_name("Sandkeeper local authority")
        usage = make_usage(signs_certificates=True)
        certificate = (
            start_certificate(name, name, key.public_key(), AUTHORITY_DAYS)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(usage, critical=True)
            .add_extension(x509.NameConstraints(self._list_permitted(), None), critical=True)
            .sign(key, hashes.SHA256())
        )
        return key, certificate

    def _make_server(
        self, authority_key: ec.EllipticCurvePrivateKey, authority: x509.Certificate
    ) -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate]:
        key = ec.generate_private_key(ec.SECP256R1())
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key())
        certificate = (
            start_certificate(
                make_name("Sandkeeper engine"), authority.subject, key.public_key(), SERVER_DAYS
            )
            .add_extension(x509.SubjectAlternativeName(self._list_alternatives()), critical=False)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(make_usage(signs_certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
            .add_extension(issuer, critical=False)
            .sign(authority_key, hashes.SHA256())
        )
        return key, certificate


def _list_addresses(host: str) -> tuple[Address, ...]:
    found = [ipaddress.ip_address(one) for one in _LOOPBACK]
    with contextlib.suppress(ValueError):
        own = ipaddress.ip_address(host)
        if not own.is_unspecified and own not in found:
            found.append(own)
    return tuple(found)


def _replace(path: Path, content: bytes) -> None:
    if not path.exists() or path.read_bytes() != content:
        write_private(path, content)


def _read_system_bundle() -> bytes:
    """Return what this machine's programs trust, so that SSL_CERT_FILE takes nothing away."""
    places: Sequence[str | None] = (
        ssl.get_default_verify_paths().openssl_cafile,
        "/etc/ssl/certs/ca-certificates.crt",
        "/etc/pki/tls/certs/ca-bundle.crt",
        "/etc/ssl/cert.pem",
    )
    for place in places:
        with contextlib.suppress(OSError):
            content = Path(place or "").read_bytes()
            return content if content.endswith(b"\n") else content + b"\n"
    return b""
