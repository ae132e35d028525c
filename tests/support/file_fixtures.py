"""Kept files over real sandboxes, a real database and a folder of the test's own."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from e2b import AsyncSandbox

from sandkeeper.domain.breaker import Breaker
from sandkeeper.domain.owner import Owner
from sandkeeper.domain.policy import Launch
from sandkeeper.domain.sandbox import Sandbox
from sandkeeper.domain.states import State
from sandkeeper.providers.base import CreateSpec, OwnershipMetadata
from sandkeeper.providers.e2b.endpoint import E2BConnection
from sandkeeper.providers.e2b.provider import E2BProvider
from sandkeeper.providers.rate_limit import RateLimiter
from sandkeeper.services.deps import Deps
from sandkeeper.services.files.blobs import open_blobs
from sandkeeper.services.files.capture import FileCapture
from sandkeeper.services.files.sealed_packs import SealedPacks
from sandkeeper.services.files.versions import FileVersions
from sandkeeper.store import Store
from support.deps import make_deps
from support.engine_process import Engine

HOME = "/home/user/app"
LIMITS = {
    "files_file_bytes_max": 64 * 2**20,
    "files_total_bytes_max": 2**30,
    "files_count_max": 100_000,
}


def now() -> datetime:
    return datetime.now(UTC)


def connect(engine: Engine) -> E2BProvider:
    """The production provider over the test's engine."""
    return E2BProvider(
        E2BConnection(api_key=engine.key, api_url=engine.url, sandbox_url=engine.url),
        keeper=f"files-{uuid.uuid4().hex[:6]}",
        breaker=Breaker(),
        rate_limiter=RateLimiter(concurrency_max=20, creates_per_s=100),
    )


@dataclass
class Filing:
    """What keeps files, and sandboxes to keep them of."""

    deps: Deps
    provider: E2BProvider
    packs: SealedPacks
    versions: FileVersions
    files: FileCapture
    folder: Path

    @classmethod
    def over(
        cls, store: Store, provider: E2BProvider, folder: Path, *, url: str = "", **options: Any
    ) -> Filing:
        deps = make_deps(store, provider, files_url=url, data=folder, **{**LIMITS, **options})
        packs = SealedPacks(deps, open_blobs(url, folder))
        versions = FileVersions(deps, packs)
        return cls(deps, provider, packs, versions, FileCapture(deps, versions), folder)

    @property
    def store(self) -> Store:
        return self.deps.store

    async def boot(self, sandbox: Sandbox | None = None) -> tuple[Sandbox, AsyncSandbox]:
        """A new sandbox, or a new instance of one, with its record in the store."""
        known = sandbox or Sandbox(
            id=uuid.uuid4().hex,
            owner=Owner.project(f"p-{uuid.uuid4().hex[:8]}"),
            provider=self.provider.name,
            created_at=now(),
            updated_at=now(),
            state_since=now(),
            launch=Launch(workdir=HOME),
        )
        tag = OwnershipMetadata(
            self.provider.keeper, known.id, known.owner.kind, known.owner.id, known.generation
        )
        instance = await self.provider.create(CreateSpec(tag=tag, template="base", timeout_s=600))
        booted = known.evolve(instance_id=instance.instance_id, state=State.RUNNING)
        if sandbox is None:
            await self.store.sandboxes.insert(booted, [])
        else:
            booted = await self.save(booted)
        native = await self.provider.open_sdk_sandbox(instance.instance_id)
        await native.commands.run(f"mkdir -p {HOME}")
        return booted, native

    async def save(self, sandbox: Sandbox) -> Sandbox:
        """Write the record, whatever its version was."""
        version = (await self.store.sandboxes.get(sandbox.id)).version
        return await self.store.sandboxes.save(sandbox, expect_version=version, now=now())


async def digest(native: AsyncSandbox) -> str:
    """Everything below the work folder that should survive: names, modes, targets, contents."""
    line = (
        f"cd {HOME} && find . -not -name . -printf '%P|%y|%m|%l\\n' | sort && "
        "find . -type f -print0 | sort -z | xargs -0r sha256sum"
    )
    return (await native.commands.run(line, timeout=120)).stdout
