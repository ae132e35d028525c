"""Which backend: chosen by one word, or taken up by a sandbox's id."""

from __future__ import annotations

import os
from typing import Final, Literal

from sandkeeper.domain.errors import InvalidRequestError
from sandkeeper.integrations.backend.contract import Backend, BackendConfig
from sandkeeper.integrations.backend.e2b import E2BBackend
from sandkeeper.integrations.backend.local import LocalBackend

BackendKind = Literal["e2b", "local"]
KINDS: Final[dict[str, type[E2BBackend]]] = {"e2b": E2BBackend, "local": LocalBackend}


def create_backend(kind: BackendKind, config: BackendConfig | None = None) -> Backend:
    """A backend that `setup` will fill. Nothing is created yet."""
    return _choose(kind)(config)


async def connect_backend(
    sandbox_id: str, kind: BackendKind | None = None, config: BackendConfig | None = None
) -> Backend:
    """The backend of a sandbox that exists, woken if it sleeps.

    Without a kind it is E2B's when `E2B_API_KEY` is set, and the local engine's otherwise. Give the
    config it was made with if its work folder or its connection is not the default.
    """
    chosen = kind or ("e2b" if os.environ.get("E2B_API_KEY") else "local")
    backend = _choose(chosen)(config, sandbox_id=sandbox_id)
    await backend.connect()
    return backend


def _choose(kind: str) -> type[E2BBackend]:
    try:
        return KINDS[kind]
    except KeyError:
        known = ", ".join(KINDS)
        raise InvalidRequestError(f"There is no backend {kind!r}; there are: {known}.") from None
