"""envd, outside: the processes and files of every sandbox, served from the engine's own process."""

from __future__ import annotations

from sandkeeper.engine.envd.application import Envd

__all__ = ["Envd"]
