"""Files during a wake: compare, restore and verify them, and write the result on the receipt."""

from __future__ import annotations

from dataclasses import replace

import structlog
from e2b import AsyncSandbox

from sandkeeper.domain.errors import (
    CaptureUnsupportedError,
    FilesDamagedError,
    FilesUnavailableError,
)
from sandkeeper.domain.policy import FilesOnResume
from sandkeeper.domain.receipt import PATHS_MAX, FileLoss, Receipt, WakeMethod
from sandkeeper.domain.sandbox import Sandbox
from sandkeeper.services.deps import Deps
from sandkeeper.services.files import RestoreReport, RunCheck, WorkingFiles
from sandkeeper.services.wake.file_gap import find_file_gap_ms

log = structlog.get_logger(__name__)


class WakeFileRestorer:
    """Restore the files of a woken sandbox and record what it took."""

    def __init__(self, deps: Deps, files: WorkingFiles) -> None:
        self._files = files
        self._store = deps.store
        self._metrics = deps.metrics

    async def is_first(self, sandbox: Sandbox) -> bool:
        """Return whether the files of a sandbox that is resumed come before its use.

        That is so by its policy, or if the API changed files while it slept.
        """
        if sandbox.policy.files_on_resume is FilesOnResume.BEFORE:
            return True
        try:
            return await self._files.has_pending(sandbox.owner)
        except (FilesUnavailableError, FilesDamagedError):
            return False  # The comparison says so on the receipt.

    async def restore(self, sandbox: Sandbox, native: AsyncSandbox, receipt: Receipt) -> Receipt:
        """Return the receipt with the files' part. Safe to repeat.

        A new instance gets everything, and every file is verified by hash. An instance that kept
        its disk is compared, and what it lost is restored. If the comparison itself fails there,
        the disk is as the provider kept it: the receipt says so and the wake continues.
        """
        if receipt.method is WakeMethod.RECREATE:
            return await self._fill(sandbox, native, receipt)
        try:
            return await self._repair(sandbox, native, receipt)
        except (CaptureUnsupportedError, FilesUnavailableError, FilesDamagedError) as error:
            log.warning("files_not_compared", sandbox_id=sandbox.id, error=str(error))
            return replace(receipt, reason=f"the files were not compared: {error.message}")

    async def _fill(self, sandbox: Sandbox, native: AsyncSandbox, receipt: Receipt) -> Receipt:
        gap_ms = await find_file_gap_ms(self._store, sandbox)
        put = await self._files.restore(sandbox, native)
        if put.version == 0:
            return replace(receipt, restored=0)
        left_out = put.not_kept
        receipt = replace(
            receipt,
            files_gap_ms=gap_ms,
            not_kept=left_out.paths,
            not_kept_count=left_out.count,
        )
        if put.is_proven:
            return _add(replace(receipt, checked=put.files, hashed=put.files), put)
        proof = await self._files.verify(sandbox, native, everything=True)
        receipt = _add(replace(receipt, checked=proof.checked, hashed=proof.hashed), put)
        named = {loss.path for loss in receipt.lost}
        unproven = tuple(path for path in proof.lost if path not in named)
        losses = tuple(FileLoss(path, "not proven by its hash") for path in unproven)
        return _lose(receipt, losses, len(losses))

    async def _repair(self, sandbox: Sandbox, native: AsyncSandbox, receipt: Receipt) -> Receipt:
        found = await self._files.verify(sandbox, native, everything=False)
        put = None
        if not found.is_whole:
            put = await self._files.restore(sandbox, native, paths=found.lost)
        return add_check(receipt, RunCheck(found, put))

    def count(self, receipt: Receipt) -> None:
        """Count the restored files in the metrics, once per wake."""
        self._metrics.files_restored.inc(receipt.restored)


def add_check(receipt: Receipt, checked: RunCheck) -> Receipt:
    """Return the receipt with a comparison and what it put back."""
    found, put = checked.found, checked.put
    left = () if put is None else put.left
    receipt = replace(
        receipt,
        files_pending=False,
        files_version=found.version,
        checked=found.checked,
        hashed=found.hashed,
        newer=len(found.newer) + len(left),
        unread=tuple(FileLoss(one.path, one.reason) for one in found.unreadable),
    )
    if put is None:
        return receipt
    restored = tuple(path for path in found.lost if path not in left)
    return replace(_add(receipt, put), restored_paths=restored[:PATHS_MAX])


def _add(receipt: Receipt, put: RestoreReport) -> Receipt:
    losses = tuple(FileLoss(one.path, one.reason) for one in put.lost)
    receipt = replace(receipt, files_version=put.version, restored=put.files)
    return _lose(receipt, losses, put.lost_count)


def _lose(receipt: Receipt, losses: tuple[FileLoss, ...], count: int) -> Receipt:
    return replace(
        receipt,
        lost=(*receipt.lost, *losses)[:PATHS_MAX],
        lost_count=receipt.lost_count + count,
    )
