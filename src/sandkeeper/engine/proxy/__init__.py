"""The way to a sandbox's own servers, without opening its network."""

from __future__ import annotations

from sandkeeper.engine.proxy.application import PortProxy

__all__ = ["PortProxy"]
