"""How another program reaches an instance: read from the provider's detail, and kept for once."""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import Mapping
from typing import Final

from packaging.version import Version

from sandkeeper.providers.base import SdkConnectionInfo

KEPT_MAX: Final = 256
"""Connections of new instances kept at a time. Higher holds some that no one asks for, such as
those of projects; lower costs the sessions of a large burst one more request each."""


class Connections:
    """Read connections; keep those that a creation told until they are asked for.

    Each is handed out once: a caller whose connection did not work asks the provider again.
    """

    def __init__(self, *, api_url: str, sandbox_url: str | None, domain: str) -> None:
        self._api_url = api_url
        self._sandbox_url = sandbox_url
        self._domain = domain
        self._kept: OrderedDict[str, SdkConnectionInfo] = OrderedDict()

    def read(self, instance_id: str, detail: Mapping[str, object]) -> SdkConnectionInfo:
        """Return the connection that the detail of an instance describes."""
        token = detail.get("envdAccessToken")
        return SdkConnectionInfo(
            instance_id=instance_id,
            api_url=self._api_url,
            sandbox_url=self._sandbox_url,
            domain=str(detail.get("domain") or self._domain),
            envd_version=str(Version(str(detail["envdVersion"]))),
            access_token=str(token) if token else None,
        )

    def keep(self, instance_id: str, detail: Mapping[str, object]) -> None:
        """Keep the connection of a new instance. A detail without one must fail no creation."""
        with contextlib.suppress(KeyError, ValueError):
            self._kept[instance_id] = self.read(instance_id, detail)
            while len(self._kept) > KEPT_MAX:
                self._kept.popitem(last=False)

    def take(self, instance_id: str) -> SdkConnectionInfo | None:
        """Return the connection that was kept for an instance, and forget it."""
        return self._kept.pop(instance_id, None)
