"""Share links, own domains and the list of requests, as they are stored."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime

from sandkeeper.domain.errors import InvalidRequestError
from sandkeeper.domain.owner import Owner

_PATH = re.compile(r"/(?!/)[\x21-\x5b\x5d-\x7e]{0,500}")
"""No other host, however a browser may read it: no second slash, backslash, space or control."""


@dataclass(frozen=True, slots=True)
class ShareLink:
    """A link that opens one preview. Only the SHA-256 of its secret is stored."""

    id: str
    owner: Owner
    digest: str
    port: int | None
    path: str
    uses_max: int | None
    created_at: datetime
    created_by: str
    expires_at: datetime
    uses: int = 0
    revoked_at: datetime | None = None

    def is_valid(self, now: datetime) -> bool:
        return self.revoked_at is None and now < self.expires_at


@dataclass(frozen=True, slots=True)
class PreviewDomain:
    """A host name of its own for a preview."""

    host: str
    owner: Owner
    port: int | None
    created_at: datetime
    created_by: str


@dataclass(frozen=True, slots=True)
class PreviewRequest:
    """One line of a preview's list of requests: no body, no query, no secret."""

    sandbox_id: str
    at: datetime
    method: str
    path: str
    status: int
    took_ms: int
    received: int
    sent: int
    kind: str
    who: str
    number: int = 0
    """Its position in the list, assigned by the database."""


def is_own_path(path: str) -> bool:
    """Return whether a redirect to this path stays on its host, and reaches the app."""
    return bool(_PATH.fullmatch(path)) and not path.startswith("/.sandkeeper")


def check_path(path: str) -> None:
    """Raise InvalidRequestError unless the path stays on its host."""
    if not is_own_path(path):
        raise InvalidRequestError(
            f"{path[:80]!r} is no path of a preview: begin with one '/', without spaces or '\\\\'."
        )
