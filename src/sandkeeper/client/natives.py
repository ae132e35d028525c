"""The official SDK's own objects, made from what a lease tells. No request is made."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from e2b import ConnectionConfig
from packaging.version import Version

if TYPE_CHECKING:
    from e2b import AsyncSandbox, Sandbox

    from sandkeeper.api.schemas_sessions import NativeConnection

S = TypeVar("S", bound="Sandbox | AsyncSandbox")


def make_native(sandbox_class: type[S], connection: NativeConnection) -> S:
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
    return sandbox_class(
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
