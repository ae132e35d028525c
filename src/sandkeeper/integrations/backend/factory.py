"""Create a backend by kind, or connect to one by sandbox id."""

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
    """Return a backend. Its sandbox is created by `setup`."""
    return _get_class(kind)(config)


async def connect_backend(
    sandbox_id: str, kind: BackendKind | None = None, config: BackendConfig | None = None
) -> Backend:
    """Connect to an existing sandbox; resume it if it is paused.

    The kind defaults to `e2b` if `E2B_API_KEY` is set, and to `local` otherwise. Pass the config it
    was created with if its work folder or connection is not the default.
    """
    chosen = kind or ("e2b" if os.environ.get("E2B_API_KEY") else "local")
    backend = _get_class(chosen)(config, sandbox_id=sandbox_id)
    await backend.connect()
    return backend


def _get_class(kind: str) -> type[E2BBackend]:
    try:
        return KINDS[kind]
    except KeyError:
        known = ", ".join(KINDS)
        raise InvalidRequestError(f"Unknown backend {kind!r}; use one of: {known}.") from None
