"""Whether each provider answers: asked by every replica at short intervals, known to all as one.

While a provider is silent, what ran there is shown as UNKNOWN; no page has to be open for that. The
records stay as they are, so silence ends nothing and starts nothing. One lost answer is no outage:
a provider is silent after a second one, and while no other replica gets answers either. Before a
silence ends, the records are compared with what the provider lists, so that nothing is shown as
running that ended in between.

All replicas show the same: the silence is a shared value that each reads twice a second. A silent
provider that answers any other call is asked at once, so the silence ends with the first answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

import structlog

from sandkeeper.domain.errors import ProviderError, SandkeeperError
from sandkeeper.domain.sandbox import Sandbox
from sandkeeper.providers.base import Provider
from sandkeeper.services.deps import Deps

log = structlog.get_logger(__name__)

# Time between two questions, and how long one waits. Together they bound how long a dead provider
# is not noticed: two questions, 30 s. Shorter ones cost the provider more requests.
CHECK_PERIOD_S: Final = 10.0
CHECK_TIMEOUT_S: Final = 5.0
FAILURES_MAX: Final = 2

# An answer to another replica counts for this long: it covers the questions that it asks itself.
OTHERS_COUNT_S: Final = FAILURES_MAX * (CHECK_PERIOD_S + CHECK_TIMEOUT_S)

# How often the shared value is read. Replicas differ for this long; it is the feed's own poll.
REFRESH_PERIOD_S: Final = 0.5

# How long the comparison may delay the end of a silence. A larger fleet is compared behind it.
COMPARE_WITHIN_S: Final = 20.0

PREFIX: Final = "provider."

OnChange = Callable[[], Awaitable[None]]
Compare = Callable[[Provider], Awaitable[object]]


@dataclass(frozen=True, slots=True)
class Silence:
    """What the replicas know of one provider."""

    answered_at: datetime | None
    answered_to: str
    """The replica that got the last answer."""
    since: datetime | None
    """Since when no replica has got an answer; None while one gets them."""

    def render(self) -> dict[str, Any]:
        return {"answeredAt": self.answered_at, "answeredTo": self.answered_to, "since": self.since}

    @classmethod
    def parse(cls, value: dict[str, Any]) -> Silence:
        return cls(
            answered_at=_parse_time(value["answeredAt"]),
            answered_to=value["answeredTo"],
            since=_parse_time(value["since"]),
        )


async def _compare_nothing(_provider: Provider) -> None:
    return None


class ProviderHealth:
    """Since when each provider has been silent, as far as the replicas know."""

    def __init__(self, deps: Deps) -> None:
        self._providers = deps.providers
        self._values = deps.store.key_values
        self._metrics = deps.metrics
        self._clock = deps.clock
        self._replica = deps.replica
        self._failures: dict[str, int] = {}
        self._failing_since: dict[str, datetime] = {}
        self._silent: dict[str, datetime] = {}
        self._answers: dict[str, int] = {}
        """How often each silent provider had answered when it was last known to be silent."""
        self._listeners: list[OnChange] = []
        self._compare: Compare = _compare_nothing
        self._show()

    def on_change(self, listener: OnChange) -> None:
        """Await `listener` whenever a provider falls silent or answers again."""
        self._listeners.append(listener)

    def compare_with(self, compare: Compare) -> None:
        """Await `compare` with a provider that answers again, before its silence ends."""
        self._compare = compare

    def find_down_since(self, sandbox: Sandbox) -> datetime | None:
        """Return since when the sandbox's provider does not answer; None while it does."""
        provider = self._providers.find(sandbox) if self._silent else None
        return None if provider is None else self._silent.get(_name(provider))

    def list_down(self) -> dict[str, datetime]:
        """Return the providers that do not answer, by name and region, and since when."""
        back = {_name(provider) for provider in self._list_back()}
        return {name: since for name, since in self._silent.items() if name not in back}

    def list_silent_places(self) -> tuple[tuple[str, str | None], ...]:
        """Return provider and region, as records name them, of everything that does not answer."""
        places: list[tuple[str, str | None]] = []
        first: dict[str, Provider] = {}
        for provider in self._providers if self._silent else ():
            is_first = first.setdefault(provider.name, provider) is provider
            if _name(provider) in self._silent:
                # A record without a region belongs to the first provider of its name.
                places += [(provider.name, provider.region)]
                places += [(provider.name, None)] if is_first else []
        return tuple(places)

    async def check(self) -> dict[str, int]:
        """Ask every provider once."""
        await asyncio.gather(*(self._check_one(provider) for provider in self._providers))
        return await self.refresh()

    async def refresh(self) -> dict[str, int]:
        """Read what the replicas know, and tell the listeners if it changed."""
        for provider in self._list_back():
            await self._check_one(provider)
        before, known = self._silent, await self._read()
        names = {_name(provider) for provider in self._providers}
        self._silent = {
            name: one.since
            for name, one in known.items()
            if one.since is not None and name in names
        }
        self._answers = {
            name: self._answers.get(name, self._providers.count_answers(provider))
            for provider in self._providers
            if (name := _name(provider)) in self._silent
        }
        if self._silent != before:
            for name in self._silent.keys() - before.keys():
                log.warning("provider_unreachable", provider=name)
            for name in before.keys() - self._silent.keys():
                log.info("provider_back", provider=name, since=before[name].isoformat())
            self._show()
            for listener in self._listeners:
                await listener()
        return {"down": len(self._silent)}

    def _list_back(self) -> list[Provider]:
        """Return the silent providers that have answered a call of this process since."""
        return [
            provider
            for provider in self._providers
            if _name(provider) in self._silent
            and self._providers.count_answers(provider) > self._answers[_name(provider)]
        ]

    async def _check_one(self, provider: Provider) -> None:
        name, asked_at = _name(provider), self._clock()
        try:
            async with asyncio.timeout(CHECK_TIMEOUT_S):
                await provider.list_instances(limit=1)
        except (ProviderError, TimeoutError):
            self._failing_since.setdefault(name, asked_at)
            self._failures[name] = self._failures.get(name, 0) + 1
            self._answers[name] = self._providers.count_answers(provider)
            if self._failures[name] >= FAILURES_MAX:
                await self._record_silence(name)
        else:
            self._failures.pop(name, None)
            self._failing_since.pop(name, None)
            await self._record_answer(provider, asked_at)

    async def _record_answer(self, provider: Provider, asked_at: datetime) -> None:
        name = _name(provider)
        known = (await self._read()).get(name)
        if known is not None and known.since is not None:
            try:
                async with asyncio.timeout(COMPARE_WITHIN_S):
                    await self._compare(provider)
            except (SandkeeperError, TimeoutError) as error:
                log.warning("not_compared_after_silence", provider=name, error=repr(error))
        await self._write(name, Silence(asked_at, self._replica, since=None))

    async def _record_silence(self, name: str) -> None:
        known = (await self._read()).get(name) or Silence(None, self._replica, since=None)
        if known.since is not None:
            return
        answered_at = None if known.answered_to == self._replica else known.answered_at
        counts_since = self._clock() - timedelta(seconds=OTHERS_COUNT_S)
        if answered_at is not None and answered_at > counts_since:
            return
        silent = Silence(known.answered_at, known.answered_to, self._failing_since[name])
        await self._write(name, silent)

    async def _read(self) -> dict[str, Silence]:
        found = await self._values.list(PREFIX)
        return {name.removeprefix(PREFIX): Silence.parse(one) for name, one in found.items()}

    async def _write(self, name: str, silence: Silence) -> None:
        await self._values.put(PREFIX + name, silence.render(), now=self._clock())

    def _show(self) -> None:
        for provider in self._providers:
            is_up = _name(provider) not in self._silent
            self._metrics.provider_up.labels(provider.name, provider.region).set(is_up)


def _name(provider: Provider) -> str:
    return f"{provider.name}/{provider.region}"


def _parse_time(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)
