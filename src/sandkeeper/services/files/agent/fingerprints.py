"""Know without a look inside that nothing changed in a work folder since it was captured.

Where the provider tells the fingerprint of a folder (our own engine does), it is read before each
capture and remembered with what the capture saved. As long as it stays the same, in the same run
and over the same saved files, a capture would find what the last one found: it is skipped, and no
process is started inside. Memory holds the fingerprints; without one, a capture looks.
"""

from __future__ import annotations

from collections import OrderedDict
from datetime import datetime
from typing import Final, NamedTuple

from sandkeeper.domain.errors import ProviderError
from sandkeeper.domain.files.ignore_rules import IGNORE_FILE, PRUNED_FOLDERS
from sandkeeper.domain.sandbox import Sandbox
from sandkeeper.providers.registry import ProviderRegistry
from sandkeeper.services.files.versions import VersionHandle

REMEMBERED_MAX: Final = 10_000
"""Sandboxes whose fingerprints are remembered. One beyond it is looked at again."""


class SavedState(NamedTuple):
    """What a fingerprint belongs to: the run, the list of saved files, and what it leaves out."""

    instance_id: str | None
    run_started_at: datetime | None
    manifest: str
    with_secrets: bool


class Fingerprints:
    """The fingerprints of the work folders that this process captured."""

    def __init__(self, providers: ProviderRegistry) -> None:
        self._providers = providers
        self._known: OrderedDict[str, tuple[SavedState, str]] = OrderedDict()

    async def read(self, sandbox: Sandbox, root: str) -> str | None:
        """Return the fingerprint of a running sandbox's work folder as it is now."""
        if sandbox.instance_id is None:
            return None
        try:
            return await self._providers.get(sandbox).read_fingerprint(
                sandbox.instance_id, root, PRUNED_FOLDERS
            )
        except ProviderError:
            return None  # The capture finds out what is wrong, and says so.

    def remember(
        self, sandbox: Sandbox, handle: VersionHandle, found: str | None, *, with_secrets: bool
    ) -> None:
        """Note that these saved files are what a folder with this fingerprint holds."""
        state = _get_state(sandbox, handle, with_secrets)
        self._known.pop(sandbox.id, None)
        if found is None or state is None:
            return
        self._known[sandbox.id] = state, found
        while len(self._known) > REMEMBERED_MAX:
            self._known.popitem(last=False)

    def is_same(
        self, sandbox: Sandbox, handle: VersionHandle, found: str | None, *, with_secrets: bool
    ) -> bool:
        """Return whether a folder with this fingerprint holds what is saved, and nothing else."""
        state = _get_state(sandbox, handle, with_secrets)
        return None not in (state, found) and self._known.get(sandbox.id) == (state, found)


def _get_state(sandbox: Sandbox, handle: VersionHandle, with_secrets: bool) -> SavedState | None:
    """Return what a fingerprint may belong to; None if only a look inside can tell.

    A folder with rules of its own may save what the fingerprint leaves out.
    """
    entries = handle.manifest.entries
    if handle.version is None or IGNORE_FILE in entries:
        return None
    run_started_at = sandbox.run.run_started_at
    return SavedState(sandbox.instance_id, run_started_at, handle.version.manifest, with_secrets)
