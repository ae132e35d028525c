"""Working files: kept by content outside the sandbox, so that none is lost when it ends."""

from __future__ import annotations

from sandkeeper.services.files.contract import (
    CaptureResult,
    RestoreReport,
    RunCheck,
    SkippedFile,
    VerifyReport,
    WorkingFiles,
)

__all__ = [
    "CaptureResult",
    "RestoreReport",
    "RunCheck",
    "SkippedFile",
    "VerifyReport",
    "WorkingFiles",
]
