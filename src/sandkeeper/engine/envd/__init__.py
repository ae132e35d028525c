"""envd, outside: the processes and files of every sandbox, served from the engine's own process."""

from __future__ import annotations

from sandkeeper.engine.envd.messages import load_messages

load_messages()

from sandkeeper.engine.envd.application import Envd  # noqa: E402 -- needs the messages loaded.

__all__ = ["Envd"]
