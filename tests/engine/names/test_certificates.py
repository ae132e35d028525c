"""The local authority and the engine's certificate, as OpenSSL sees them."""

from __future__ import annotations

import socket
import ssl
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from sandkeeper.engine.names.certificates import LocalCertificates
from sandkeeper.engine.names.endpoint import GivenCertificates, Tls


def make(folder: Path, domain: str = "sandboxes.example.com") -> LocalCertificates:
    return LocalCertificates(folder, domain, "127.0.0.1")


@contextmanager
def served(chain: Path) -> Iterator[int]:
    """A TLS server with this certificate, for one connection after the other."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(chain)
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                raw, _ = listener.accept()
            except OSError:
                return
            with raw:
                try:
                    context.wrap_socket(raw, server_side=True).close()
                except OSError:
                    continue

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()


def shake_hands(port: int, name: str, trusted: Path) -> None:
    context = ssl.create_default_context(cafile=str(trusted))
    with (
        socket.create_connection(("127.0.0.1", port)) as raw,
        context.wrap_socket(raw, server_hostname=name),
    ):
        pass


def test_clients_accept_the_names_of_the_domain_and_no_others(tmp_path: Path) -> None:
    own = make(tmp_path / "tls")
    own.ensure()

    with served(own.chain_file) as port:
        for name in (
            *("api.sandboxes.example.com", "3000-abc.sandboxes.example.com", "localhost"),
            *("127.0.0.1", "49983-abc.sandkeeper.localhost"),
        ):
            shake_hands(port, name, own.ca_file)
            shake_hands(port, name, own.bundle_file)
        with pytest.raises(ssl.SSLCertVerificationError):
            shake_hands(port, "example.com", own.ca_file)


def test_the_authority_cannot_vouch_for_other_sites(tmp_path: Path) -> None:
    own = make(tmp_path / "tls")
    own.ensure()
    content = (tmp_path / "tls" / "authority.pem").read_bytes()
    key = serialization.load_pem_private_key(content, None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    authority = x509.load_pem_x509_certificate(content)
    stolen = tmp_path / "stolen.pem"
    stolen.write_bytes(issue_for("bank.example", key, authority))

    with served(stolen) as port, pytest.raises(ssl.SSLCertVerificationError, match="permitted"):
        shake_hands(port, "bank.example", own.ca_file)


def issue_for(name: str, key: ec.EllipticCurvePrivateKey, authority: x509.Certificate) -> bytes:
    now = datetime.now(UTC)
    own = ec.generate_private_key(ec.SECP256R1())
    certificate = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([]))
        .issuer_name(authority.subject)
        .public_key(own.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=True)
        .sign(key, hashes.SHA256())
    )
    return own.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    ) + certificate.public_bytes(serialization.Encoding.PEM)


def test_keys_are_for_their_owner_alone(tmp_path: Path) -> None:
    make(tmp_path / "tls").ensure()

    for name in ("authority.pem", "server.pem"):
        assert stat.S_IMODE((tmp_path / "tls" / name).stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "tls").stat().st_mode) == 0o700


def test_both_certificates_are_kept_until_they_are_due(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(tmp_path / "tls").ensure()
    authority = (tmp_path / "tls" / "ca.pem").read_bytes()

    assert make(tmp_path / "tls").ensure() is False

    monkeypatch.setattr("sandkeeper.engine.names.certificates.SERVER_RENEW_DAYS", 91)
    assert make(tmp_path / "tls").ensure() is True
    assert (tmp_path / "tls" / "ca.pem").read_bytes() == authority


def test_another_domain_or_a_damaged_file_gets_new_certificates(tmp_path: Path) -> None:
    make(tmp_path / "tls").ensure()
    first = (tmp_path / "tls" / "ca.pem").read_bytes()

    assert make(tmp_path / "tls", "other.example.com").ensure() is True
    second = (tmp_path / "tls" / "ca.pem").read_bytes()
    (tmp_path / "tls" / "authority.pem").write_text("half a fi")
    assert make(tmp_path / "tls", "other.example.com").ensure() is True

    assert len({first, second, (tmp_path / "tls" / "ca.pem").read_bytes()}) == 3


def test_a_certificate_of_the_users_is_read_again_when_it_changes(tmp_path: Path) -> None:
    own = make(tmp_path / "tls")
    own.ensure()
    given = GivenCertificates(own.chain_file, None)
    Tls(given)

    assert given.ensure() is False
    own.chain_file.unlink()
    own.ensure()
    assert given.ensure() is True
