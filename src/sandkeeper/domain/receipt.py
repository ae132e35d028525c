"""The receipt of a wake: what was kept, what was restored, what was lost, and how long it took.

A *summary* is the small part of a wake that the sandbox's own record carries, so that every status
can show it: the current step, or the receipt of the last wake.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Final

PATHS_MAX: Final = 100
"""How many paths a receipt names. More would make every status large; the counts are complete."""


NAMED_MAX: Final = 3
"""How many paths the note of a receipt names."""

FILES_NOT_SAVED: Final = "its files were not saved first"
"""In the reason of a pause that was carried out without a capture."""


class WakeMethod(StrEnum):
    """How a wake brought the sandbox back."""

    NOTHING = "nothing"
    """It ran already; at most its app was started."""
    RESUME = "resume"
    """Memory and disk came back."""
    REBOOT = "reboot"
    """Only the disk came back."""
    RECREATE = "recreate"
    """A new instance with the saved files."""


class StepName(StrEnum):
    """The steps of a wake, in this order; a method starts at the first step that fits it."""

    RESUMING = "resuming"
    REBOOTING = "rebooting"
    RECREATING = "recreating"
    RESTORING_FILES = "restoring_files"
    STARTING_APP = "starting_app"
    WAITING_FOR_PORT = "waiting_for_port"


_FIRST: Final = {
    WakeMethod.RESUME: (StepName.RESUMING, StepName.RESTORING_FILES),
    WakeMethod.REBOOT: (StepName.REBOOTING, StepName.RESTORING_FILES),
    WakeMethod.RECREATE: (StepName.RECREATING, StepName.RESTORING_FILES),
    WakeMethod.NOTHING: (),
}


def list_steps(method: WakeMethod) -> tuple[StepName, ...]:
    """Return the steps of a wake by this method."""
    return (*_FIRST[method], StepName.STARTING_APP, StepName.WAITING_FOR_PORT)


@dataclass(frozen=True, slots=True)
class FileLoss:
    """A file that could not be restored or read, and why."""

    path: str
    reason: str


@dataclass(frozen=True, slots=True)
class Receipt:
    """What a wake did for the files and the app.

    ``unread`` is what could not be read inside the sandbox and was left as it is.
    ``restored_paths``, ``lost`` and ``unread`` are bounded. ``files_gap_ms`` is the time between
    the last capture and the end of the instance: what changed in it is lost, and cannot be named.
    ``not_kept`` are the first files of the last capture that the policy leaves out because they may
    hold secrets: a new instance does not have them. ``app_kept`` is set when the app answered after
    a resume and was left alone. ``files_pending`` is set while the files of a resumed sandbox are
    still to be compared, beside its use.
    """

    method: WakeMethod
    reason: str = ""
    memory_kept: bool = False
    disk_kept: bool = False
    files_version: int = 0
    files_gap_ms: int | None = None
    checked: int = 0
    hashed: int = 0
    newer: int = 0
    restored: int = 0
    restored_paths: tuple[str, ...] = ()
    lost: tuple[FileLoss, ...] = ()
    lost_count: int = 0
    unread: tuple[FileLoss, ...] = ()
    not_kept: tuple[str, ...] = ()
    not_kept_count: int = 0
    app_started: bool = False
    app_kept: bool = False
    files_pending: bool = False
    took_ms: int = 0

    @property
    def is_recreated(self) -> bool:
        """Return True when the sandbox has a new instance."""
        return self.method is WakeMethod.RECREATE

    @property
    def is_app_outdated(self) -> bool:
        """Return True when files were restored under an app that was left alone."""
        return self.app_kept and self.restored > 0

    @property
    def files_note(self) -> str | None:
        """Return what a new instance may lack; None if it has the newest files, and all of them."""
        if not self.is_recreated:
            return None
        if self.files_version == 0:
            return "no files had been saved before the end"
        notes = []
        if self.files_gap_ms:
            notes.append(f"files as of {_format_span(self.files_gap_ms / 1000)} before the end")
        if self.not_kept_count:
            notes.append(_describe_not_kept(self.not_kept, self.not_kept_count))
        return "; ".join(notes) or None


@dataclass(frozen=True, slots=True)
class WakeSummary:
    """A wake as the sandbox's record shows it. In progress while ``step`` is set."""

    wake_id: str
    method: WakeMethod
    started_at: datetime
    generation: int
    step: StepName | None = None
    usual_ms: int | None = None
    receipt: Receipt | None = None
    error_code: str | None = None
    error: str | None = None
    finished_at: datetime | None = None
    position: int | None = None
    """Its place in line while it waits for a slot."""
    wait_ms: int | None = None
    """How long that will take, if it was measured."""

    @property
    def is_shown(self) -> bool:
        """Return True while the wake should be shown; an app's first start is no wake."""
        return self.step is not None and self.method is not WakeMethod.NOTHING

    def has_compared(self, *, since: datetime) -> bool:
        """Return True when this wake fully restored the saved files in the run that began then."""
        if self.receipt is None or self.finished_at is None or self.finished_at < since:
            return False
        return self.receipt.files_version > 0 and self.receipt.lost_count == 0


def render_receipt(receipt: Receipt) -> dict[str, Any]:
    """Return the receipt as plain values for the store."""
    return asdict(receipt)


def parse_receipt(values: dict[str, Any]) -> Receipt:
    """Parse what ``render_receipt`` wrote; fields of a newer version are dropped."""
    known = {name: values[name] for name in Receipt.__slots__ if name in values}
    known["method"] = WakeMethod(known["method"])
    for name in ("restored_paths", "not_kept"):
        known[name] = tuple(known.get(name, ()))
    for name in ("lost", "unread"):
        known[name] = tuple(FileLoss(**one) for one in known.get(name, ()))
    return Receipt(**known)


def render_summary(mark: WakeSummary) -> dict[str, Any]:
    """Return the summary as plain values for the store."""
    finished_at = mark.finished_at.timestamp() if mark.finished_at else None
    return asdict(mark) | {"started_at": mark.started_at.timestamp(), "finished_at": finished_at}


def parse_summary(values: dict[str, Any]) -> WakeSummary:
    """Parse what ``render_summary`` wrote."""
    known = {name: values[name] for name in WakeSummary.__slots__ if name in values}
    known["method"] = WakeMethod(known["method"])
    known["step"] = StepName(known["step"]) if known.get("step") else None
    known["started_at"] = datetime.fromtimestamp(known["started_at"], UTC)
    if known.get("finished_at"):
        known["finished_at"] = datetime.fromtimestamp(known["finished_at"], UTC)
    if known.get("receipt"):
        known["receipt"] = parse_receipt(known["receipt"])
    return WakeSummary(**known)


def _describe_not_kept(paths: tuple[str, ...], count: int) -> str:
    named = ", ".join(paths[:NAMED_MAX]) + (", …" if count > NAMED_MAX else "")
    return f"not kept by policy: {named} ({count} {'file' if count == 1 else 'files'})"


def _format_span(seconds: float) -> str:
    """Return a time that is never too short."""
    if seconds < 1:
        return "less than 1 s"
    if seconds <= 120:
        return f"{math.ceil(seconds)} s"
    return f"{math.ceil(seconds / 60)} min" if seconds <= 7200 else f"{math.ceil(seconds / 3600)} h"
