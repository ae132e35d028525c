"""Objects of the official SDKs, built from a lease without a request.

The session's kind decides the class, if its package is installed (`sandkeeper[sdk]`): `run_code`
for execution; mouse, keyboard and screenshots for a desktop.

The SDKs are imported on first use: that takes longer than the rest of the client, and many programs
only ask for statuses.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from e2b import AsyncSandbox, Sandbox

    from sandkeeper.api.schemas.sessions import KindName, SdkConnection

S = TypeVar("S", bound="Sandbox | AsyncSandbox")

# The desktop SDK has no async class.
_CLASSES: dict[tuple[str | None, bool], tuple[str, str]] = {
    ("execution", False): ("e2b_code_interpreter", "Sandbox"),
    ("execution", True): ("e2b_code_interpreter", "AsyncSandbox"),
    ("desktop", False): ("e2b_desktop", "Sandbox"),
}


def get_sandbox_class(kind: KindName | None = None) -> type[Sandbox]:
    """Return the SDK class for this kind; `e2b.Sandbox` if its package is not installed."""
    found: type[Sandbox] = _find(kind, "Sandbox", is_async=False)
    return found


def get_async_sandbox_class(kind: KindName | None = None) -> type[AsyncSandbox]:
    """Return the async SDK class for this kind."""
    found: type[AsyncSandbox] = _find(kind, "AsyncSandbox", is_async=True)
    return found


def build_sdk_sandbox(sandbox_class: type[S], connection: SdkConnection) -> S:
    """Build the SDK's sandbox object with the instance's token, without an account's key.

    Commands, files and ports work with it. Calls of the account (kill, set_timeout) need
    `E2B_API_KEY` in the environment; the keeper does them instead.
    """
    from e2b import ConnectionConfig  # noqa: PLC0415
    from packaging.version import Version  # noqa: PLC0415

    headers = {
        "E2b-Sandbox-Id": connection.instance_id,
        "E2b-Sandbox-Port": str(ConnectionConfig.envd_port),
    }
    if connection.access_token:
        headers["X-Access-Token"] = connection.access_token
    native = sandbox_class(
        sandbox_id=connection.instance_id,
        sandbox_domain=connection.domain,
        envd_version=Version(connection.envd_version),
        envd_access_token=connection.access_token,
        traffic_access_token=None,
        connection_config=ConnectionConfig(
            api_url=connection.api_url,
            sandbox_url=connection.sandbox_url,
            domain=connection.domain,
            extra_sandbox_headers=headers,
        ),
    )
    if any(one.__module__.startswith("e2b_desktop.") for one in sandbox_class.__mro__):
        _add_stream(native)
    return native


def _find(kind: str | None, plain: str, *, is_async: bool) -> Any:
    package, name = _CLASSES.get((kind, is_async), ("e2b", plain))
    try:
        return getattr(importlib.import_module(package), name)
    except ImportError:
        return getattr(importlib.import_module("e2b"), plain)


def _add_stream(desktop: Any) -> None:
    """Add `stream`, which only the desktop SDK's `create` sets up."""
    main = importlib.import_module("e2b_desktop.main")
    desktop._display = ":0"
    desktop._Sandbox__vnc_server = main._VNCServer(desktop)
