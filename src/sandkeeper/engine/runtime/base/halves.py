"""The parts of a disk: the kernel cannot lay one writable layer over several places.

Used by the spawner, so this module imports next to nothing.
"""

from __future__ import annotations

from pathlib import Path

DATABASE = "/var/lib/dpkg"
"""The host's packages, whose files are below its `/usr`."""


def list_shown() -> dict[str, str]:
    """Return the folders of the host that lie below all layers, by the half that shows them."""
    return {"usr": "/usr"} | ({"dpkg": DATABASE} if Path(DATABASE, "info").is_dir() else {})


def list_halves(shown: dict[str, str]) -> dict[str, str]:
    """Return where each half of a tree is mounted that shows these folders, in this order."""
    return {"root": "/", **shown}
