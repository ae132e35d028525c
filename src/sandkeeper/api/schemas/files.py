"""The shapes of kept files on the wire."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from sandkeeper.api.schemas.base import NO_NUL, ApiModel, Name, RequestModel, StateName

VersionNumber = Annotated[int, Field(ge=1, le=2**31 - 1)]


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
    """A whole state of the kept files, and what brought it: `capture`, or `api`."""

    number: int
    files: int
    bytes: int
    source: str
    created_at: datetime
    seen_at: datetime
    reason: str
    """Why it was saved; empty if nothing is known about it, like `actor`."""
    actor: str
    changed: int | None
    """How many paths are new or changed against the version before, and `removed` how many are
    gone; null if it was saved before this was counted."""
    removed: int | None


class NamedVersionOut(FileVersionOut):
    """A version with the names that it has as a checkpoint."""

    names: list[str]


class VersionPage(ApiModel):
    """Versions of the kept files, newest first."""

    items: list[NamedVersionOut]
    next_cursor: str | None


class ForkRequest(RequestModel):
    """The new project's name; without `version`, it gets the files as they are now."""

    project: Name
    version: VersionNumber | None = None


class ForkOut(ApiModel):
    """The new project, and the version of the other one that it began with."""

    project: str
    id: str
    status: StateName
    from_version: int


class CheckpointRequest(RequestModel):
    """A name for a version; without `version`, for the files as they are now."""

    name: Annotated[str, StringConstraints(min_length=1, max_length=100, pattern=NO_NUL)]
    version: VersionNumber | None = None


class CheckpointOut(ApiModel):
    """A version that has a name, and is not pruned while it has it."""

    name: str
    version: int
    created_at: datetime
    actor: str


class PathChangeOut(ApiModel):
    """A path that differs between two versions; `old` or `new` is null where it does not exist."""

    path: str
    change: Literal["added", "changed", "removed"]
    old: File | None
    new: File | None


class VersionDiff(ApiModel):
    """What differs between two versions, in pages; `old` is 0 for the state before the first."""

    old: int
    new: int
    changed: int
    removed: int
    items: list[PathChangeOut]
    next_cursor: str | None


class FileDiff(ApiModel):
    """What differs in one file, as a unified diff; empty if nothing does.

    Without a diff, `problem` says why: the file is binary, or too large to compare here.
    """

    old: int
    new: int
    change: PathChangeOut
    diff: str | None
    problem: Literal["binary", "too_large"] | None


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


class RestoreRequest(RequestModel):
    """What to restore: a file or a folder of a version; without `path`, all of it."""

    version: VersionNumber
    path: Annotated[str, StringConstraints(max_length=4000, pattern=NO_NUL)] = ""


class RestoreOut(ApiModel):
    """What a restore did. `undoVersion` has the files as they were before it; 0 if there were none.

    `inside` is false if there is no sandbox: the next wake brings the files. At most a hundred of
    the paths that were left alone are named.
    """

    version: int
    from_version: int
    undo_version: int
    changed: int
    removed: int
    inside: bool
    left: list[SkippedFileOut]
    left_count: int


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
