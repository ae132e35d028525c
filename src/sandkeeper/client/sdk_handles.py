"""The official SDK's own objects, made from what a lease tells. No request is made.

What a session is for decides the class, where the SDK's own package for it is installed
(`sandkeeper[sdk]`): `run_code` for execution, mouse, keyboard and screenshots for a desktop.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, TypeVar

import e2b
from e2b import ConnectionConfig
from packaging.version import Version

if TYPE_CHECKING:
    from e2b import AsyncSandbox, Sandbox

    from sandkeeper.api.schemas.sessions import KindName, SdkConnection

S = TypeVar("S", bound="Sandbox | AsyncSandbox")

# The SDK for desktops has no class for event loops.
_CLASSES: dict[tuple[str, bool], tuple[str, str]] = {
    ("execution", False): ("e2b_code_interpreter", "Sandbox"),
    ("execution", True): ("e2b_code_interpreter", "AsyncSandbox"),
    ("desktop", False): ("e2b_desktop", "Sandbox"),
}


def find_class(kind: KindName) -> type[Sandbox]:
    """The class for a session of this kind; the plain one where its package is not installed."""
    found: type[Sandbox] = _find(kind, is_async=False) or e2b.Sandbox
    return found


def find_async_class(kind: KindName) -> type[AsyncSandbox]:
    """The same for programs with an event loop."""
    found: type[AsyncSandbox] = _find(kind, is_async=True) or e2b.AsyncSandbox
    return found


def build_sdk_sandbox(sandbox_class: type[S], connection: SdkConnection) -> S:
    """The sandbox as the SDK knows it, with the instance's own token and no account's key.

    Commands, files and ports work with it. What only the account may do (kill, set_timeout) takes
    `E2B_API_KEY` from the environment, and belongs to the keeper anyway.
    """
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


def _find(kind: str, *, is_async: bool) -> Any:
    package, name = _CLASSES.get((kind, is_async), ("e2b", ""))
    try:
        return getattr(importlib.import_module(package), name, None)
    except ImportError:
        return None


def _add_stream(desktop: Any) -> None:
    """Give a desktop what only its SDK's `create` adds, and connecting leaves out: `stream`."""
    main = importlib.import_module("e2b_desktop.main")
    desktop._display = ":0"
    desktop._Sandbox__vnc_server = main._VNCServer(desktop)
