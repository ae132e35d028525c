"""The JSON shapes of requests and answers, a module for each area.

`schemas.sandboxes` imports its module when it is first used: a client imports them all by name and
needs pydantic, and the few shapes that it sends or gets, only then.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import ModuleType

    from sandkeeper.api.schemas import (
        access,
        admin,
        files,
        fleet,
        sandboxes,
        sessions,
        wakes,
    )

__all__ = ["access", "admin", "files", "fleet", "sandboxes", "sessions", "wakes"]


def __getattr__(name: str) -> ModuleType:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return import_module(f"{__name__}.{name}")
