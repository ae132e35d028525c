"""The authority that sandboxes with rules trust, and the certificates that it gives to hosts.

Its key never leaves the data folder. Unlike the authority of the engine's own names it may vouch
for any name, so it is not for browsers and no program outside of sandboxes is told to trust it.
"""

from __future__ import annotations

import os
import ssl
import time
from collections import OrderedDict
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
AUTHORITY_RENEW_DAYS = 30
HOST_DAYS = 7
_FRESH_S = 24 * 3600.0
_HOSTS_MAX = 256
"""Certificates in memory; another one is made again in about a millisecond."""


class EgressAuthority:
    """Made at the first use and kept in the data folder, 0600."""

    def __init__(self, folder: Path) -> None:
        create_private_folder(folder)
        place = folder / "egress-authority.pem"
        pair = load_pair(place)
        if pair is None or count_days_left(pair[1]) < AUTHORITY_RENEW_DAYS:
            pair = _make_authority()
            write_private(place, to_pem(*pair))
        self._key, self._certificate = pair
        self.pem = self._certificate.public_bytes(serialization.Encoding.PEM).decode()
        self._contexts: OrderedDict[str, tuple[float, ssl.SSLContext]] = OrderedDict()

    def find_context(self, host: str) -> ssl.SSLContext:
        """Return what a server needs to be that host."""
        made, context = self._contexts.get(host, (0.0, None))
        if context is None or time.monotonic() - made > _FRESH_S:
            context = self._make_context(host)
            self._contexts[host] = time.monotonic(), context
        self._contexts.move_to_end(host)
        while len(self._contexts) > _HOSTS_MAX:
            self._contexts.popitem(last=False)
        return context

    def _make_context(self, host: str) -> ssl.SSLContext:
        key = ec.generate_private_key(ec.SECP256R1())
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        certificate = (
            start_certificate(
                make_name(host[:64]), self._certificate.subject, key.public_key(), HOST_DAYS
            )
            .add_extension(x509.SubjectAlternativeName([x509.DNSName(host)]), critical=False)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(make_usage(signs_certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
            .add_extension(issuer, critical=False)
            .sign(self._key, hashes.SHA256())
        )
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.set_alpn_protocols(["http/1.1"])
        # It takes files only, and this one exists in memory alone.
        fd = os.memfd_create("certificate", os.MFD_CLOEXEC)
        try:
            os.write(fd, to_pem(key, certificate))
            context.load_cert_chain(f"/proc/self/fd/{fd}")
        finally:
            os.close(fd)
        return context


def _make_authority() -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate]:
    key = ec.generate_private_key(ec.SECP256R1())
    name = make_name("Sandkeeper egress authority")
    certificate = (
        start_certificate(name, name, key.public_key(), AUTHORITY_DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(make_usage(signs_certificates=True), critical=True)
        .sign(key, hashes.SHA256())
    )
    return key, certificate
