"""Track E2B sandboxes, pause idle ones and wake them on demand.

The public names are imported on first use, so that `import sandkeeper` itself imports nothing.
"""

TYPE_CHECKING = False  # Type checkers know this name; importing `typing` would cost time.
if TYPE_CHECKING:
    from sandkeeper.client.blocking import Sandkeeper as Sandkeeper
    from sandkeeper.client.keeper import AsyncSandkeeper as AsyncSandkeeper
    from sandkeeper.settings import Settings as Settings

__all__ = ["AsyncSandkeeper", "Sandkeeper", "Settings"]

_MODULES = {
    "AsyncSandkeeper": "sandkeeper.client.keeper",
    "Sandkeeper": "sandkeeper.client.blocking",
    "Settings": "sandkeeper.settings",
}


def __getattr__(name: str) -> object:
    """Import a public name on first use (PEP 562)."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module  # noqa: PLC0415  Only when a name is used.

    value: object = getattr(import_module(_MODULES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
