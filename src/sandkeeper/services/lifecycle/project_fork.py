"""Fork a project: a new one with the files of any version, and created in the same way.

The files are committed before the sandbox is created, so the new one begins with them. Contents are
stored once: both projects need the same packs. A fork that broke off in between is repeated with
the same call.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Final

from sandkeeper.domain.errors import InvalidRequestError, SandboxExistsError
from sandkeeper.domain.files.manifest import Manifest
from sandkeeper.domain.owner import Owner, OwnerKind
from sandkeeper.domain.sandbox import Sandbox
from sandkeeper.services.deps import Deps
from sandkeeper.services.files.history.file_history import FileHistory
from sandkeeper.services.files.versions import FileVersions, VersionHandle
from sandkeeper.services.lifecycle.creation import Creation

SOURCE: Final = "fork"


@dataclass(frozen=True, slots=True)
class Forked:
    """The new sandbox, and the version that it began with."""

    sandbox: Sandbox
    from_version: int


class ProjectFork:
    """Copy a version to a new project, and create its sandbox."""

    def __init__(
        self, deps: Deps, versions: FileVersions, history: FileHistory, creation: Creation
    ) -> None:
        self._store = deps.store
        self._versions = versions
        self._history = history
        self._creation = creation

    async def fork(
        self, source: Owner, target: Owner, *, number: int | None = None, actor: str
    ) -> Forked:
        """Create `target` from a version of `source`; without a number, from the present files.

        Raise SandboxExistsError if the new project has a sandbox, and InvalidRequestError if it has
        files already.
        """
        if target.kind is not OwnerKind.PROJECT:
            raise InvalidRequestError("A fork makes a project: its name has no kind before it.")
        target.check_name()
        model = await self._store.sandboxes.get_by_owner(source)
        if await self._store.sandboxes.find_by_owner(target) is not None:
            raise SandboxExistsError(f"The project {target.id!r} has a sandbox.")
        if number is None:
            number = await self._history.save_present(source, actor=actor, reason="for a fork")
        await self._copy(source, target, number, actor=actor)
        made = await self._creation.create(
            target, launch=model.launch, policy=model.policy, actor=actor
        )
        return Forked(made.sandbox, number)

    async def _copy(self, source: Owner, target: Owner, number: int, *, actor: str) -> None:
        kept = (await self._versions.open(source, number)).manifest
        # How the files look inside is another sandbox's, and nothing of them is in the new one.
        # The present time lets them win over what a template has in their places.
        at = time.time_ns()
        entries = [one.evolve(stamp="", is_pending=False, mtime_ns=at) for one in kept.files]
        manifest = Manifest.of(entries, kept.not_kept)
        present = await self._versions.open(target)
        if present.version is not None and present.version.tree == manifest.tree:
            return
        if present.version is not None:
            raise InvalidRequestError(
                f"The project {target.id!r} has saved files: choose another name."
            )
        await self._versions.commit(
            VersionHandle(target, None, Manifest()),
            manifest,
            self._versions.pack(),
            source=SOURCE,
            actor=actor,
            reason=f"version {number} of {source.id}",
        )
