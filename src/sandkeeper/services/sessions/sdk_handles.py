"""The SDK's own objects of running instances, made once and kept for a while.

Making one asks the provider for the instance's token, which does not change while it lives; a
health check on each use of a session should not have to ask again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass

from e2b import AsyncSandbox

from sandkeeper.domain.errors import WrongStateError
from sandkeeper.domain.sandbox import Sandbox
from sandkeeper.providers.base import SdkConnectionInfo
from sandkeeper.services.deps import Deps

# Handles kept at a time. More costs some kilobytes each; fewer costs a request for a forgotten one.
KEPT_MAX = 2000
SAID_MAX = 4096


@dataclass(frozen=True, slots=True)
class SdkHandle:
    """A handle, and what another program needs to make the same."""

    access: SdkConnectionInfo
    sandbox: AsyncSandbox

    async def run(
        self, command: str, *, timeout_s: float, env: Mapping[str, str] | None = None
    ) -> str:
        """The last words that a command prints; what runs inside may print without end."""
        said = ""

        def hear(text: str) -> None:
            nonlocal said
            said = (said + text)[-SAID_MAX:]

        await self.sandbox.commands.run(
            command,
            envs=dict(env or {}),
            on_stdout=hear,
            timeout=timeout_s,
            request_timeout=timeout_s,
            retain_output=False,
        )
        return said


class SdkHandleCache:
    """Handles by instance, the longest unused forgotten first."""

    def __init__(self, deps: Deps) -> None:
        self._regions = deps.providers
        self._kept: OrderedDict[str, SdkHandle] = OrderedDict()

    async def open(self, sandbox: Sandbox) -> SdkHandle:
        """The handle of the sandbox's present instance; nothing is woken or touched."""
        instance_id = sandbox.instance_id
        if instance_id is None:
            raise WrongStateError("This sandbox has no instance.", state=sandbox.state.value)
        known = self._kept.get(instance_id)
        if known is None:
            provider = self._regions.get(sandbox)
            access = await provider.get_connection_info(instance_id)
            known = self._kept[instance_id] = SdkHandle(access, provider.build_sdk_sandbox(access))
            while len(self._kept) > KEPT_MAX:
                self._kept.popitem(last=False)
        self._kept.move_to_end(instance_id)
        return known

    def forget(self, instance_id: str | None) -> None:
        """Drop a handle that did not work."""
        self._kept.pop(instance_id or "", None)
