"""The base root file system, made once for a whole test run.

Making it costs hundreds of files. It is only ever read, so every data folder of a run may have the
same one.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from sandkeeper.engine.runtime.base.rootfs import ensure_base
from sandkeeper.engine.runtime.bubblewrap import binaries


def lend_base(factory: pytest.TempPathFactory, data: Path) -> Path:
    """Make a data folder that has its base already; return the folder."""
    kept = factory.getbasetemp() / "premade"
    kept.mkdir(exist_ok=True)
    base = ensure_base(kept, binaries.find_uid_base())
    data.mkdir(mode=0o700, parents=True, exist_ok=True)
    (data / base.name).symlink_to(base)
    return data
