"""What must be true, judged from outside: from what callers were told and what the engine has."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from sandkeeper.providers.e2b.metadata import parse_metadata

LEASE_MARGIN_S: Final = 1.0


@dataclass
class File:
    """The contents that one path may have: those written since the one that is promised."""

    written: list[str] = field(default_factory=list)
    promised: int = -1
    """The number of the oldest content that may be there; before the first, it may be absent."""
    kept: int = -1
    """The number of the content that was acknowledged as kept."""

    def accepts(self, content: str | None) -> bool:
        if content is None:
            return self.promised < 0
        return content in self.written[max(self.promised, 0) :]


@dataclass
class Told:
    """What the callers of one owner were told."""

    files: dict[str, File] = field(default_factory=lambda: defaultdict(File))
    instances: set[str] = field(default_factory=set)
    """Those that a caller was given."""
    may_end: bool = False
    """Whether its end was asked for since the last wake."""
    pausing: int = 0
    """How many manual pauses are asked for and not answered."""
    leased_until: float = 0.0


class Oracle:
    """Collects what is broken. Every line names the owner and what was seen."""

    def __init__(self) -> None:
        self.told: dict[str, Told] = defaultdict(Told)
        self.broken: list[str] = []
        self.checked_files = 0
        self.looks = 0
        self._living: dict[str, tuple[str, str]] = {}

    def answer(self, what: str, status: int, text: str) -> None:
        """Judge one answer of the keeper."""
        if status == 500:
            self.break_(f"{what} answered 500: {text[:200]}")

    def edit(self, owner: str, path: str, content: str) -> int:
        """Note a content that is about to be written; return its number."""
        file = self.told[owner].files[path]
        file.written.append(content)
        return len(file.written) - 1

    def promise(self, owner: str, path: str, number: int) -> None:
        """Note that the content was written into an instance that a finished wake had given."""
        self.told[owner].files[path].promised = number

    def read_promises(self, owner: str) -> dict[str, int]:
        return {path: file.promised for path, file in self.told[owner].files.items()}

    def keep(self, owner: str, promises: Mapping[str, int]) -> None:
        """Note that everything promised then is kept now."""
        for path, number in promises.items():
            file = self.told[owner].files[path]
            file.kept = max(file.kept, number)

    def lose_instance(self, owner: str) -> None:
        """Note that the instance may end: then only what was kept is promised."""
        told = self.told[owner]
        told.may_end = True
        for file in told.files.values():
            file.promised = min(file.promised, file.kept)

    def forget_kept(self) -> None:
        """Note that a backup was restored: nothing that was kept since is known."""
        for told in self.told.values():
            for file in told.files.values():
                file.kept = -1
                if told.may_end:
                    file.promised = -1

    def look(self, listed: list[dict[str, Any]]) -> None:
        """Judge what the engine has."""
        self.looks += 1
        living: dict[str, tuple[str, str]] = {}
        owners: dict[str, list[str]] = defaultdict(list)
        for one in listed:
            tag = parse_metadata(one.get("metadata") or {})
            if tag is not None:
                living[one["sandboxID"]] = (tag.owner_id, one["state"])
                owners[tag.owner_id].append(one["sandboxID"])
        for owner, instances in owners.items():
            if len(instances) > 1:
                self.break_(f"{owner} has {len(instances)} instances: {sorted(instances)}")
        self._judge_ends(living)
        self._judge_pauses(living)
        self._living = living

    def _judge_ends(self, living: Mapping[str, tuple[str, str]]) -> None:
        for instance_id, (owner, _) in self._living.items():
            told = self.told[owner]
            if instance_id in living or told.may_end or instance_id not in told.instances:
                continue
            self.break_(f"the healthy {instance_id} of {owner} was destroyed")

    def _judge_pauses(self, living: Mapping[str, tuple[str, str]]) -> None:
        for instance_id, (owner, state) in living.items():
            was = self._living.get(instance_id, (owner, ""))[1]
            told = self.told[owner]
            if state != "paused" or was != "running" or told.pausing:
                continue
            if time.monotonic() < told.leased_until - LEASE_MARGIN_S:
                self.break_(f"{owner} was paused while a lease was held")

    def compare_file(self, owner: str, path: str, content: str | None) -> None:
        self.checked_files += 1
        file = self.told[owner].files[path]
        if not file.accepts(content):
            wanted = file.written[max(file.promised, 0) :]
            self.break_(f"{owner} lost {path}: it has {content!r}, promised is one of {wanted}")

    def break_(self, line: str) -> None:
        if line not in self.broken:
            self.broken.append(line)
