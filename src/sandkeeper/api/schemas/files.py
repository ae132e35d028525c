"""The shapes of kept files on the wire."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from sandkeeper.api.schemas.base import ApiModel


class File(ApiModel):
    """One kept path. `mode` is octal text; `pending` is not yet inside the sandbox."""

    path: str
    kind: Literal["file", "symlink", "dir"]
    mode: str
    size: int
    sha256: str | None
    target: str | None
    modified_at: datetime
    pending: bool


class FileVersionOut(ApiModel):
    """A whole state of the kept files, and who brought it: a capture, or the API."""

    number: int
    files: int
    bytes: int
    source: str
    created_at: datetime
    seen_at: datetime


class FileList(ApiModel):
    """A page of the kept files in the order of their paths. `version` is 0 while none are kept."""

    version: int
    files: int
    bytes: int
    items: list[File]
    next_cursor: str | None
    versions: list[FileVersionOut]


class FileEdit(ApiModel):
    """A change that is kept. `inside` is false if the sandbox gets it with its next wake."""

    version: int
    changed: int
    inside: bool
    ignored: list[str]


class SkippedFileOut(ApiModel):
    """A path that could not be kept, and why."""

    path: str
    reason: str


class CaptureOut(ApiModel):
    """What a capture found. At most a hundred unreadable paths are named."""

    version: int
    is_new: bool
    files: int
    bytes: int
    changed: int
    removed: int
    travelled_bytes: int
    unreadable: list[SkippedFileOut]
    unreadable_count: int
    not_kept: list[str]
    not_kept_count: int
    duration_ms: int
