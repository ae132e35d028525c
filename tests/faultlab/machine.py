"""Callers, background, webhooks, clocks and faults in any order, chosen by hypothesis from a seed.

`python -m faultlab.machine --seed 7 --examples 1000` runs one seed. The same seed tells the same
stories in every process: there is no other clock and no other source of chance.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import logging
import shutil
import sys
import tempfile
from pathlib import Path

import structlog
from hypothesis import HealthCheck, note, settings
from hypothesis import seed as seeded
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from hypothesis.stateful import run_state_machine_as_test as run_machine

from faultlab.clocks import DATABASE_OFFSETS_S, MACHINE_OFFSETS_S, PROVIDER_OFFSETS_S
from faultlab.simulation import Fault, Simulation, StoreFault
from sandkeeper.providers.base import EventKind, LifecycleEvent
from sandkeeper.store import open_store
from sandkeeper.store.database import Database
from support.virtual_time import virtual_time

STEPS = 30

OWNERS = st.sampled_from(["p1", "p2"])
REPLICAS = st.integers(0, 2)
# A keeper on SQLite has one other clock, the provider's. The two are never wrong in the same way.
MACHINES_AHEAD_S = st.sampled_from([0.0, *(float(one) for one in MACHINE_OFFSETS_S)])
PROVIDER_AHEAD_S = st.sampled_from([0.0, *(float(one) for one in PROVIDER_OFFSETS_S)])
DATABASE_AHEAD_S = st.sampled_from([0.0, *(float(one) for one in DATABASE_OFFSETS_S)])
SECONDS = st.sampled_from([0.0, 0.02, 0.06, 0.5, 2.0, 14.0, 31.0, 61.0, 125.0])


class Machine(RuleBasedStateMachine):
    """Callers, background, webhooks and faults in any order."""

    template: Path
    told: list[str]
    """What every example told, in their order."""

    @initialize(replicas=st.integers(1, 3), seed=st.integers(0, 1000))
    def begin(self, replicas: int, seed: int) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="faultlab-"))
        shutil.copy(self.template, self.folder / "store.db")
        self.time = virtual_time(seed)
        loop = self.time.__enter__()
        database = Database(f"sqlite:///{self.folder / 'store.db'}")
        self.simulation = Simulation(loop, database, replicas=replicas)
        self.delivered = 0
        self.late: list[LifecycleEvent] = []

    def teardown(self) -> None:
        if not hasattr(self, "simulation"):
            return
        try:
            if not self.simulation.broken:
                self.simulation.heal()
                self.simulation.check_healed()
            self.nothing_is_broken()
        finally:
            self.told += self.simulation.story
            self.simulation.close()
            self.time.__exit__(None, None, None)
            shutil.rmtree(self.folder)

    @rule(owner=OWNERS, replica=REPLICAS)
    def create(self, owner: str, replica: int) -> None:
        simulation = self.simulation
        simulation.request(replica, "create", owner, lambda one: simulation.create(one, owner))

    @rule(
        verb=st.sampled_from(["wake", "wake", "pause", "kill", "verify"]),
        owner=OWNERS,
        replica=REPLICAS,
    )
    def act(self, verb: str, owner: str, replica: int) -> None:
        work = getattr(self.simulation, verb)
        self.simulation.request(replica, verb, owner, lambda one: work(one, owner))

    @rule(verb=st.sampled_from(["touch", "lease", "release"]), owner=OWNERS, replica=REPLICAS)
    def use(self, verb: str, owner: str, replica: int) -> None:
        work = getattr(self.simulation, verb)
        self.simulation.request(replica, verb, owner, lambda one: work(one, owner))

    @rule(
        verb=st.sampled_from(
            ["sweep", "reconcile", "catch up", "take up", "recover", "check clocks"]
        ),
        replica=REPLICAS,
    )
    def work(self, verb: str, replica: int) -> None:
        self.simulation.background(replica, verb)

    @rule(seconds=SECONDS)
    def wait(self, seconds: float) -> None:
        self.simulation.advance(seconds)

    @rule(replica=REPLICAS, times=st.integers(0, 2), is_late=st.booleans())
    def deliver(self, replica: int, times: int, is_late: bool) -> None:
        """Deliver the next webhook: not at all, once, twice, or later and out of order."""
        events = self.simulation.provider.events
        if self.delivered >= len(events):
            return
        event = events[self.delivered]
        self.delivered += 1
        if is_late:
            self.late.append(event)
            return
        for again in range(times):
            self.simulation.deliver(replica + again, event)

    @rule(replica=REPLICAS, data=st.data())
    def deliver_late(self, replica: int, data: st.DataObject) -> None:
        if self.late:
            index = data.draw(st.integers(0, len(self.late) - 1))
            self.simulation.deliver(replica, self.late.pop(index))

    @rule(
        replica=REPLICAS,
        index=st.integers(0, 3),
        kind=st.sampled_from([EventKind.KILLED, EventKind.PAUSED, EventKind.RESUMED]),
        late_s=st.sampled_from([-3600.0, 0.0, 30.0]),
    )
    def contradict(self, replica: int, index: int, kind: EventKind, late_s: float) -> None:
        event = self.simulation.forge(index, kind, late_s=late_s)
        if event is not None:
            self.simulation.deliver(replica, event)

    @rule(index=st.integers(0, 3), is_told=st.booleans())
    def lose_instance(self, index: int, is_told: bool) -> None:
        """End an instance at the provider, with or without an event."""
        living = sorted(self.simulation.provider.instances)
        if living:
            instance_id = living[index % len(living)]
            if is_told:
                self.simulation.provider.end(instance_id, reason="request")
            else:
                self.simulation.provider.vanish(instance_id)

    @rule(faults=st.lists(st.sampled_from(Fault), min_size=1, max_size=5))
    def disturb_provider(self, faults: list[Fault]) -> None:
        self.simulation.faults.extend(faults)

    @rule(faults=st.lists(st.sampled_from(StoreFault), min_size=1, max_size=3))
    def disturb_store(self, faults: list[StoreFault]) -> None:
        self.simulation.store_faults.extend(faults)

    @rule(replica=REPLICAS, after=st.integers(0, 12))
    def crash(self, replica: int, after: int) -> None:
        self.simulation.crash(replica, after=after)

    @rule()
    def restart(self) -> None:
        self.simulation.restart()

    @rule(replica=REPLICAS, seconds=st.sampled_from([20.0, 70.0, 200.0]))
    def freeze(self, replica: int, seconds: float) -> None:
        """Let a replica stand still, and go on by itself after that time."""
        simulation = self.simulation
        gate = simulation.replicas[replica % len(simulation.replicas)].gate
        gate.freeze()
        simulation.loop.call_later(seconds, gate.thaw)

    @rule(replica=REPLICAS, ahead_s=MACHINES_AHEAD_S)
    def move_clock(self, replica: int, ahead_s: float) -> None:
        self.simulation.move_clock(replica, ahead_s)

    @rule(ahead_s=PROVIDER_AHEAD_S)
    def move_provider_clock(self, ahead_s: float) -> None:
        self.simulation.move_provider_clock(ahead_s)

    @rule(ahead_s=DATABASE_AHEAD_S)
    def move_database_clock(self, ahead_s: float) -> None:
        self.simulation.move_database_clock(ahead_s)

    @invariant()
    def nothing_is_broken(self) -> None:
        if hasattr(self, "simulation") and self.simulation.broken:
            for line in self.simulation.story[-60:]:
                note(line)
            raise AssertionError("; ".join(self.simulation.broken[:3]))


def run_seed(seed: int, examples: int) -> str:
    """Run the examples of a seed; return a digest of all that happened in them."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    with tempfile.TemporaryDirectory(prefix="faultlab-") as folder:
        machine = type("SeededMachine", (Machine,), {"template": make_template(folder), "told": []})
        try:
            run_machine(
                seeded(seed)(machine),
                settings=settings(
                    max_examples=examples,
                    stateful_step_count=STEPS,
                    deadline=None,
                    database=None,
                    suppress_health_check=list(HealthCheck),
                ),
            )
        except BaseException as error:
            command = f"python -m faultlab.machine --seed {seed} --examples {examples}"
            error.add_note(f"repeat it with: PYTHONPATH=tests {command}")
            raise
        return hashlib.sha256("\n".join(machine.told).encode()).hexdigest()


def make_template(folder: str) -> Path:
    """Return a migrated database to copy."""
    path = Path(folder) / "template.db"

    async def migrate() -> None:
        async with open_store(f"sqlite:///{path}"):
            pass

    asyncio.run(migrate())
    return path


def main() -> int:
    parser = argparse.ArgumentParser(prog="faultlab.machine")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--examples", type=int, default=1000)
    given = parser.parse_args()
    sys.stdout.write(f"{run_seed(given.seed, given.examples)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
