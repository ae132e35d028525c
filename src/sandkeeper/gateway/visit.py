"""One request to a preview, and what is known about it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sandkeeper.api.status.cache import CachedStatus
from sandkeeper.domain.gateway.addresses import PreviewAddress
from sandkeeper.domain.gateway.requests import RequestKind
from sandkeeper.domain.gateway.visits import Admission
from sandkeeper.domain.owner import Owner
from sandkeeper.gateway.admission import Visitor
from sandkeeper.relay.asgi import Scope


@dataclass(frozen=True, slots=True)
class Visit:
    """One request, and what is known about it."""

    scope: Scope
    headers: Mapping[str, str]
    kind: RequestKind
    address: PreviewAddress
    owner: Owner | None
    entry: CachedStatus | None
    visitor: Visitor
    admission: Admission
    began: float

    @property
    def host(self) -> str:
        return self.headers.get("host", "")
