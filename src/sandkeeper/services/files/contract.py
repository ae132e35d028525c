"""What others may ask of the kept files.

A sandbox's *working files* are what lies in its work folder, minus what is ignored. They are kept
outside the sandbox, by content, in numbered versions. Three verbs join the two:

- `capture` brings what changed inside to us. A version is whole or does not exist: a capture that
  fails half-way leaves the one before in force.
- `verify` compares what is inside with what is kept, and changes nothing.
- `restore` puts kept files into the sandbox: all of them after a recreation, or the ones that
  `verify` found lost after a resume.

A wake after a resume is ``verified = verify(...)``, then ``restore(..., paths=verified.lost)`` if
there are any. After a recreation it is ``restore(...)``, which proves each content inside, by hash,
as it is written. Only where the sandbox cannot do so (`is_proven` is false), it takes a
``verify(..., everything=True)`` as well, whose `is_whole` is the proof then.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from e2b import AsyncSandbox

from sandkeeper.domain.files.manifest import NotKept
from sandkeeper.domain.owner import Owner
from sandkeeper.domain.sandbox import Sandbox

FILES_ACTOR: Final = "files"


@dataclass(frozen=True, slots=True)
class SkippedFile:
    """A path inside that could not be kept or put back, and why."""

    path: str
    reason: str


@dataclass(frozen=True, slots=True)
class CaptureResult:
    """What a capture found. `version` is the one in force now, 0 when nothing was ever kept."""

    version: int
    is_new: bool
    files: int
    bytes: int
    changed: int
    removed: int
    travelled_bytes: int
    unreadable: tuple[SkippedFile, ...]
    """At most a hundred; `unreadable_count` says how many there are."""
    unreadable_count: int
    not_kept: NotKept
    duration_s: float


@dataclass(frozen=True, slots=True)
class RestoreReport:
    """What was put into the sandbox. `version` is 0 when nothing was kept, and nothing was done."""

    version: int
    files: int
    bytes: int
    removed: int
    lost: tuple[SkippedFile, ...]
    """Kept files that could not be put back, at most a hundred; `lost_count` says how many."""
    lost_count: int
    left: tuple[str, ...]
    """Paths that were changed inside since `verify` saw them, and were left alone."""
    is_proven: bool
    """Whether each content was hashed inside as it was written, and seen in its place at the end.
    """
    not_kept: NotKept
    """What the last capture saw and left out."""
    duration_s: float


@dataclass(frozen=True, slots=True)
class RunCheck:
    """The comparison of the files of a run, and what was put back, if anything was."""

    found: VerifyReport
    put: RestoreReport | None = None


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """How the inside compares with what is kept, each path in at most one of the lists.

    `missing`, `older` and `damaged` are to be put back: the sandbox has nothing, an earlier state,
    or other content under the same time. `newer` was changed inside since the last capture and is
    the sandbox's own work. `stale` was deleted through the API and is still inside.
    """

    version: int
    checked: int
    hashed: int
    """How many of them were compared by hash; the others by size and time."""
    missing: tuple[str, ...]
    older: tuple[str, ...]
    damaged: tuple[str, ...]
    newer: tuple[str, ...]
    stale: tuple[str, ...]
    unreadable: tuple[SkippedFile, ...]
    """Paths that could not be read, at most a hundred; they are left as they are."""
    seen_as: Mapping[str, str]
    """How each lost path looked, for a `restore` beside the use of the sandbox; empty: missing."""
    duration_s: float

    @property
    def lost(self) -> tuple[str, ...]:
        """The paths for `restore`."""
        return (*self.missing, *self.older, *self.damaged, *self.stale)

    @property
    def is_whole(self) -> bool:
        """True when everything that is kept is inside as it was kept, or newer."""
        return not self.lost


class WorkingFiles(Protocol):
    """The joint between a sandbox and its kept files. `native` is a running instance's handle.

    Raises `InstanceGoneError` or `WrongStateError` when the instance does not run,
    `ProviderUnavailableError` when it cannot be reached, `FilesUnavailableError` when the place of
    the blobs is down, `SandboxDiskFullError` when the disk inside is full, and
    `CaptureUnsupportedError` when the sandbox lacks what the work inside needs.
    """

    async def capture(
        self,
        sandbox: Sandbox,
        native: AsyncSandbox | None = None,
        *,
        actor: str = FILES_ACTOR,
        reason: str = "",
    ) -> CaptureResult:
        """Keep what is inside now. Without `native` a handle of the present instance is opened.

        What changed is published, as caused by `actor` for this reason.
        """
        ...

    async def restore(
        self,
        sandbox: Sandbox,
        native: AsyncSandbox,
        *,
        paths: Sequence[str] | None = None,
        seen_as: Mapping[str, str] | None = None,
    ) -> RestoreReport:
        """Put kept files into the sandbox: the named ones, or all. Repeating it is harmless.

        What `seen_as` names is left alone if it does not look like that any more.
        """
        ...

    async def has_pending(self, owner: Owner) -> bool:
        """Return whether the API changed files that the sandbox does not have yet."""
        ...

    async def verify(
        self, sandbox: Sandbox, native: AsyncSandbox, *, everything: bool
    ) -> VerifyReport:
        """Compare without changing anything; `everything` hashes every file, however large."""
        ...
