"""Try every feature that Sandkeeper uses on a real provider, with one sandbox of about a minute.

The same check is part of the provider's contract tests, and `sandkeeper doctor --provider` runs it
against any server that speaks E2B's API. It ends what it created, also after an error.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from e2b import AsyncSandbox

from sandkeeper.domain.errors import ProviderUnsupportedError, SandkeeperError
from sandkeeper.providers.base import (
    CreateSpec,
    EventKind,
    Instance,
    InstanceState,
    OwnershipMetadata,
    Provider,
)
from sandkeeper.providers.features import ProviderFeature

LIFETIME_S: Final = 300
"""How long the sandbox lives at most, should the check itself die."""
STEP_S: Final = 60.0
"""How long one feature may take. Lower calls a slow provider incapable; higher delays the rest.
"""
POLL_S: Final = 0.5
PROBES_MAX: Final = 40
PORT: Final = 8017
PATH: Final = "/home/user/sandkeeper-check.txt"
CONTENT: Final = "kept\n"


class MismatchError(Exception):
    """The provider answered, and not as E2B does."""


@dataclass(frozen=True, slots=True)
class FeatureFinding:
    """The result for one feature; `is_supported` is None if it could not be tried."""

    feature: ProviderFeature
    is_supported: bool | None
    detail: str = ""
    took_s: float = 0.0


async def check_provider(
    provider: Provider, *, template: str = "base"
) -> AsyncIterator[FeatureFinding]:
    """Yield a finding for every feature, in order.

    `provider` must be made for this check alone: everything under its keeper's name is ended.
    """
    check = _Check(provider, template)
    try:
        for feature in ProviderFeature:
            if check.blocked_by is not None:
                yield FeatureFinding(feature, None, f"needs {check.blocked_by.value}")
                continue
            yield await check.run(feature)
    finally:
        await check.clean_up()


class _Check:
    def __init__(self, provider: Provider, template: str) -> None:
        self._provider = provider
        self._template = template
        self._begun_at = datetime.now(UTC) - timedelta(seconds=5)
        self._sandbox_id = f"check-{uuid.uuid4().hex[:12]}"
        self._instance: Instance | None = None
        self._missing: set[ProviderFeature] = set()
        self.blocked_by: ProviderFeature | None = None
        self._steps: dict[ProviderFeature, Callable[[], Awaitable[None]]] = {
            ProviderFeature.CREATE: self._create,
            ProviderFeature.METADATA: self._read_metadata,
            ProviderFeature.LIST: self._list,
            ProviderFeature.COMMANDS: self._run_command,
            ProviderFeature.FILES: self._use_files,
            ProviderFeature.PORTS: self._reach_port,
            ProviderFeature.METRICS: self._read_metrics,
            ProviderFeature.TIMEOUT: self._set_timeout,
            ProviderFeature.PAUSE: self._pause,
            ProviderFeature.RESUME: self._resume,
            ProviderFeature.MEMORY: self._find_process,
            ProviderFeature.REBOOT: self._reboot,
            ProviderFeature.EVENTS: self._read_events,
            ProviderFeature.WEBHOOKS: self._register_webhook,
            ProviderFeature.KILL: self._kill,
        }

    async def run(self, feature: ProviderFeature) -> FeatureFinding:
        lacked = next((one for one in NEEDS.get(feature, ()) if one in self._missing), None)
        if lacked is not None:
            self._missing.add(feature)
            return FeatureFinding(feature, False, f"needs {lacked.value}")
        begun = time.monotonic()
        is_supported: bool | None = False
        try:
            async with asyncio.timeout(STEP_S):
                await self._steps[feature]()
            is_supported, detail = True, ""
        except (MismatchError, ProviderUnsupportedError) as error:
            detail = str(error)
        except TimeoutError:
            detail = f"no result within {STEP_S:.0f} s"
        except SandkeeperError as error:
            is_supported, detail = None, str(error)
        except Exception as error:  # noqa: BLE001 - What an SDK object raises has no common root.
            detail = self._explain(error)
        if not is_supported:
            self._missing.add(feature)
        if feature is ProviderFeature.CREATE and not is_supported:
            self.blocked_by = feature
        return FeatureFinding(feature, is_supported, detail, time.monotonic() - begun)

    def _explain(self, error: Exception) -> str:
        return str(self._provider.translate(error, instance_id=self._id))

    @property
    def _id(self) -> str:
        return "" if self._instance is None else self._instance.instance_id

    async def _open(self) -> AsyncSandbox:
        return await self._provider.open_sdk_sandbox(self._id)

    async def _create(self) -> None:
        self._instance = await self._provider.create(
            CreateSpec(
                tag=self._make_tag(),
                template=self._template,
                timeout_s=LIFETIME_S,
                metadata={"purpose": "sandkeeper doctor"},
                port=PORT,
            )
        )

    def _make_tag(self) -> OwnershipMetadata:
        return OwnershipMetadata(self._provider.keeper, self._sandbox_id, "project", "check", 1)

    async def _read_metadata(self) -> None:
        seen = await self._provider.get(self._id)
        if seen.tag != self._make_tag() or seen.metadata.get("purpose") != "sandkeeper doctor":
            raise MismatchError("the metadata of the creation do not come back")

    async def _list(self) -> None:
        found = await self._provider.list_instances(sandbox_id=self._sandbox_id)
        if [one.instance_id for one in found.instances] != [self._id]:
            raise MismatchError("the list by metadata does not consist of the one sandbox")
        if (await self._provider.list_instances(sandbox_id="check-none")).instances:
            raise MismatchError("the list by metadata has sandboxes with other metadata")

    async def _run_command(self) -> None:
        done = await (await self._open()).commands.run("printf '%s' \"$((6 * 7))\"")
        if done.stdout != "42":
            raise MismatchError(f"a command printed {done.stdout[:80]!r}")

    async def _use_files(self) -> None:
        files = (await self._open()).files
        await files.write(PATH, CONTENT)
        if await files.read(PATH) != CONTENT:
            raise MismatchError("a file does not come back as it was written")

    async def _reach_port(self) -> None:
        sandbox = await self._open()
        await sandbox.commands.run(f"python3 -m http.server {PORT}", background=True)
        for _ in range(PROBES_MAX):
            if await self._provider.probe_port(self._id, PORT):
                return
            await asyncio.sleep(POLL_S)
        raise MismatchError("a server inside does not answer at the address of its port")

    async def _read_metrics(self) -> None:
        await self._provider.measure_cpu_pct([self._id])

    async def _set_timeout(self) -> None:
        await self._provider.set_timeout(self._id, timeout_s=2 * LIFETIME_S)
        seen = await self._provider.get(self._id)
        if seen.end_at is None or seen.end_at < datetime.now(UTC) + timedelta(seconds=LIFETIME_S):
            raise MismatchError("a sandbox does not live longer after its timeout was set")

    async def _pause(self) -> None:
        await self._provider.pause(self._id)
        if (await self._provider.get(self._id)).state is not InstanceState.PAUSED:
            raise MismatchError("a paused sandbox is not shown as paused")

    async def _resume(self) -> None:
        await self._provider.connect(self._id, timeout_s=LIFETIME_S)
        if await (await self._open()).files.read(PATH) != CONTENT:
            raise MismatchError("a resumed sandbox does not have its files")

    async def _find_process(self) -> None:
        listing = await (await self._open()).commands.run("cat /proc/[0-9]*/cmdline | tr '\\0' ' '")
        if f"http.server {PORT}" not in listing.stdout:
            raise MismatchError("the process of before the pause is gone")

    async def _reboot(self) -> None:
        await self._provider.pause(self._id)
        await self._provider.connect(self._id, timeout_s=LIFETIME_S, reboot=True)
        if await (await self._open()).files.read(PATH) != CONTENT:
            raise MismatchError("a sandbox that was started from its disk does not have its files")

    async def _read_events(self) -> None:
        for _ in range(PROBES_MAX):
            events = await self._provider.list_events(
                since=self._begun_at, instance_id=self._id, pages_max=1
            )
            if any(event.kind is EventKind.CREATED for event in events):
                return
            await asyncio.sleep(POLL_S)
        raise MismatchError("the events do not tell of the creation")

    async def _register_webhook(self) -> None:
        made = await self._provider.create_webhook(
            name=f"sandkeeper-{self._sandbox_id}",
            url="https://sandkeeper.invalid/api/webhooks/e2b",
            secret=uuid.uuid4().hex + uuid.uuid4().hex,
        )
        await self._provider.delete_webhook(made.webhook_id)

    async def _kill(self) -> None:
        if not await self._provider.kill(self._id):
            raise MismatchError("the sandbox was gone before it was ended")
        if (await self._provider.list_instances(sandbox_id=self._sandbox_id)).instances:
            raise MismatchError("an ended sandbox is still listed")

    async def clean_up(self) -> None:
        """End what is left; the sandbox's own timeout ends what cannot be reached now."""
        with contextlib.suppress(SandkeeperError, TimeoutError):
            async with asyncio.timeout(STEP_S):
                name = f"sandkeeper-{self._sandbox_id}"
                with contextlib.suppress(SandkeeperError):
                    for one in await self._provider.list_webhooks():
                        if one.name == name:
                            await self._provider.delete_webhook(one.webhook_id)
                for left in (await self._provider.list_instances()).instances:
                    await self._provider.kill(left.instance_id)


NEEDS: Final = {
    ProviderFeature.PORTS: (ProviderFeature.COMMANDS,),
    ProviderFeature.RESUME: (ProviderFeature.PAUSE, ProviderFeature.FILES),
    ProviderFeature.MEMORY: (ProviderFeature.RESUME, ProviderFeature.PORTS),
    ProviderFeature.REBOOT: (ProviderFeature.RESUME,),
}
"""What else a feature needs, so that a missing one is named once."""
