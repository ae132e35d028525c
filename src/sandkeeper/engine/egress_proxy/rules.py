"""The rules of `network.rules`: which headers are added to requests to which host. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from sandkeeper.engine.errors import BadRequestError
from sandkeeper.engine.runtime.egress.names import is_name

Rules = Mapping[str, Mapping[str, str]]
"""Headers by the host's name, in lower case. Their values may have placeholders."""

HOSTS_MAX = 50
HEADERS_MAX = 32
VALUE_MAX_BYTES = 8192
_SECRET = re.compile(r"\$\{e2b\.secrets\.([^{}]+)\}")
_IDENTITY = "${e2b.identity."
_HEADER = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,128}")
_VALUE = re.compile(r"[\t\x20-\x7e\x80-\xff]*")
_OF_THE_CONNECTION = frozenset(
    {
        *("connection", "content-length", "expect", "host", "keep-alive", "proxy-connection"),
        *("te", "trailer", "transfer-encoding", "upgrade"),
    }
)


def check_rules(asked: Mapping[str, Iterable[Mapping[str, str]]]) -> dict[str, dict[str, str]]:
    """Return the headers for each host. Raises BadRequestError for what cannot be obeyed."""
    if len(asked) > HOSTS_MAX:
        raise BadRequestError(f"field 'network.rules': {HOSTS_MAX} hosts at most")
    rules: dict[str, dict[str, str]] = {}
    for host, headers_of_rules in asked.items():
        if not is_name(host):
            raise BadRequestError(
                f"field 'network.rules': '{host[:80]}' is not a host's full name; addresses and "
                "patterns are not supported by this engine"
            )
        merged = rules.setdefault(host.lower(), {})
        for headers in headers_of_rules:
            merged |= {name.lower(): value for name, value in headers.items()}
        for name, value in merged.items():
            _check_header(name, value)
        if len(merged) > HEADERS_MAX:
            raise BadRequestError(f"field 'network.rules': {HEADERS_MAX} headers a host at most")
    return {host: headers for host, headers in rules.items() if headers}


def _check_header(name: str, value: str) -> None:
    where = f"field 'network.rules': header '{name[:80]}'"
    if not _HEADER.fullmatch(name):
        raise BadRequestError(f"{where} is no name of a header")
    if name in _OF_THE_CONNECTION:
        raise BadRequestError(f"{where} belongs to the connection and cannot be set")
    if not _VALUE.fullmatch(value) or len(value) > VALUE_MAX_BYTES:
        raise BadRequestError(
            f"{where}: a value has up to {VALUE_MAX_BYTES} characters of one byte, on one line"
        )
    if _IDENTITY in value:
        raise BadRequestError(f"{where}: workload identity is not supported by this engine")


def list_secrets(rules: Rules) -> set[str]:
    """Return the names of the secrets that the values mention."""
    values = (value for headers in rules.values() for value in headers.values())
    return {name for value in values for name in _SECRET.findall(value)}


def fill(headers: Mapping[str, str], secrets: Mapping[str, str]) -> dict[str, str]:
    """Return the headers with the secrets' values. Raises KeyError for an unknown secret."""
    return {
        name: _SECRET.sub(lambda found: secrets[found[1]], value) for name, value in headers.items()
    }
