"""Working files: kept by content outside the sandbox, so that none is lost when it ends."""

from __future__ import annotations

from sandkeeper.services.files.contract import (
    Captured,
    Restored,
    Unkept,
    Verified,
    WorkingFiles,
)

__all__ = ["Captured", "Restored", "Unkept", "Verified", "WorkingFiles"]
