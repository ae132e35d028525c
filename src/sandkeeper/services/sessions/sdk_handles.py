"""The SDK's own objects for running instances, created once and cached for a while.

Creating one asks the provider for the instance's token, which does not change while the instance
lives. A health check on each use of a session should not have to ask again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from functools import cached_property

from e2b import AsyncSandbox

from sandkeeper.domain.errors import WrongStateError
from sandkeeper.domain.sandbox import Sandbox
from sandkeeper.providers.base import Provider, SdkConnectionInfo
from sandkeeper.services.deps import Deps

# Handles cached at a time. Higher costs some kilobytes each; lower costs a request per eviction.
KEPT_MAX = 2000
SAID_MAX = 4096


class SdkHandle:
    """A handle, and what another program needs to make the same one."""

    def __init__(self, access: SdkConnectionInfo, provider: Provider) -> None:
        self.access = access
        self._provider = provider

    @cached_property
    def sandbox(self) -> AsyncSandbox:
        """The SDK's object. A new sandbox that no one checks here never needs it."""
        return self._provider.build_sdk_sandbox(self.access)

    async def run(
        self, command: str, *, timeout_s: float, env: Mapping[str, str] | None = None
    ) -> str:
        """Return the end of a command's output; what runs inside may print without end."""
        said = ""

        def on_output(text: str) -> None:
            nonlocal said
            said = (said + text)[-SAID_MAX:]

        await self.sandbox.commands.run(
            command,
            envs=dict(env or {}),
            on_stdout=on_output,
            timeout=timeout_s,
            request_timeout=timeout_s,
            retain_output=False,
        )
        return said


class SdkHandleCache:
    """A cache of handles by instance that evicts the least recently used first."""

    def __init__(self, deps: Deps) -> None:
        self._providers = deps.providers
        self._kept: OrderedDict[str, SdkHandle] = OrderedDict()

    async def open(self, sandbox: Sandbox) -> SdkHandle:
        """Return the handle of the sandbox's current instance, without waking or touching it."""
        instance_id = sandbox.instance_id
        if instance_id is None:
            raise WrongStateError("This sandbox has no instance.", state=sandbox.state.value)
        known = self._kept.get(instance_id)
        if known is None:
            provider = self._providers.get(sandbox)
            access = await provider.get_connection_info(instance_id)
            known = self._kept[instance_id] = SdkHandle(access, provider)
            while len(self._kept) > KEPT_MAX:
                self._kept.popitem(last=False)
        self._kept.move_to_end(instance_id)
        return known

    def forget(self, instance_id: str | None) -> None:
        """Drop a handle that did not work."""
        self._kept.pop(instance_id or "", None)
