"""A walk of actions, outside changes, lost answers, late events and time, with the rules alone.

The provider is a small world of instances that only the walk can see. The keeper is the pure
domain with one row: it claims, acts on the world, and records what came back, unless it "crashes"
between the two. After any walk: every move was in the table, at most one instance of the owner is
alive beside leaks that a reconcile would remove, and a wake that was asked for makes it run.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from sandkeeper.domain.decisions.generation import begin_generation
from sandkeeper.domain.decisions.idle import Extend, Kill, Pause, decide_idle, find_next_check_at
from sandkeeper.domain.decisions.wake import JoinCreation, Recreate, Resume, decide_wake
from sandkeeper.domain.events import EndExplained, StateChanged
from sandkeeper.domain.observe.observation import Observation, ObservedStatus, Source
from sandkeeper.domain.observe.transitions import StateChange, absorb
from sandkeeper.domain.owner import SCHEDULER_ACTOR, Owner
from sandkeeper.domain.policy import Policy
from sandkeeper.domain.sandbox import Sandbox
from sandkeeper.domain.states import State, can_move

STATES = {ObservedStatus.RUNNING: State.RUNNING, ObservedStatus.PAUSED: State.PAUSED}


@dataclass
class Instance:
    """One instance of the world, with the generation in its metadata."""

    id: str
    generation: int
    seen: ObservedStatus = ObservedStatus.RUNNING
    run: int = 0
    log: list[Observation] = field(default_factory=list)


class Walk(RuleBasedStateMachine):
    """Rules in random order; each may lose its answer."""

    def __init__(self) -> None:
        super().__init__()
        self.now = datetime(2026, 1, 1, tzinfo=UTC)
        self.world: dict[str, Instance] = {}
        self.undelivered: list[Observation] = []
        self.numbers = 0
        self.row = Sandbox(
            id="sb",
            owner=Owner.project("p"),
            provider="e2b",
            created_at=self.now,
            updated_at=self.now,
            state_since=self.now,
            policy=Policy(),
        )
        self.row = self.row.evolve(next_check_at=find_next_check_at(self.row))
        self.create_instance(lost=False)

    # The world.

    def happen(self, instance: Instance, seen: ObservedStatus) -> None:
        self.now += timedelta(milliseconds=5)
        self.numbers += 1
        if seen is ObservedStatus.RUNNING:
            instance.run += 1
        if seen in (ObservedStatus.RUNNING, ObservedStatus.PAUSED):
            instance.seen = seen
        elif seen is not ObservedStatus.CREATED:
            del self.world[instance.id]
        self.undelivered.append(
            Observation(
                instance.id,
                seen,
                self.now,
                Source.WEBHOOK,
                run_id=f"{instance.id}-{instance.run}",
                event_id=f"e{self.numbers:04}",
                sandbox_id="sb",
                generation=instance.generation,
            )
        )
        self.now += timedelta(milliseconds=5)

    def mine(self) -> Instance | None:
        return self.world.get(self.row.instance_id or "")

    # The keeper.

    def save(self, change: StateChange) -> None:
        state = self.row.state
        for event in change.events:
            if isinstance(event, StateChanged):
                assert event.old_state is state
                assert can_move(event.old_state, event.new_state)
                state = event.new_state
            elif isinstance(event, EndExplained):
                assert state is State.KILLED
                state = event.state
        assert state is change.sandbox.state
        self.row = change.sandbox

    def record(self, seen: Observation) -> None:
        outcome = absorb(self.row, seen)
        if isinstance(outcome, StateChange):
            self.save(outcome)

    def reply(
        self, instance_id: str, seen: ObservedStatus, actor: str, generation: int | None
    ) -> None:
        self.record(
            Observation(
                instance_id,
                seen,
                self.now,
                Source.REPLY,
                sandbox_id="sb",
                generation=generation,
                actor=actor,
                reason="walk",
            )
        )

    def create_instance(self, *, lost: bool) -> None:
        self.numbers += 1
        made = Instance(f"i{self.numbers:04}", self.row.generation)
        self.world[made.id] = made
        self.happen(made, ObservedStatus.CREATED)
        if not lost:
            self.reply(made.id, ObservedStatus.RUNNING, "api", made.generation)

    def reconcile(self) -> None:
        """Lists the world, adopts what was lost, removes what is not ours, marks what is gone."""
        self.now += timedelta(seconds=1)
        asked_at = self.now
        for instance in sorted(self.world.values(), key=lambda one: one.id):
            self.record(
                Observation(
                    instance.id,
                    instance.seen,
                    asked_at,
                    Source.LIST,
                    sandbox_id="sb",
                    generation=instance.generation,
                )
            )
        for instance_id in sorted(set(self.world) - {self.row.instance_id}):
            self.happen(self.world[instance_id], ObservedStatus.KILLED)
        if self.row.instance_id is not None and self.row.instance_id not in self.world:
            self.record(
                Observation(self.row.instance_id, ObservedStatus.GONE, asked_at, Source.LIST)
            )

    def wake(self, *, lost: bool) -> None:
        for _ in range(4):
            decision = decide_wake(self.row)
            if isinstance(decision, Recreate):
                self.save(
                    begin_generation(self.row, reason=decision.reason, actor="u", now=self.now)
                )
                self.create_instance(lost=lost)
            elif isinstance(decision, Resume):
                instance = self.mine()
                if instance is None:
                    self.reply(decision.instance_id, ObservedStatus.GONE, "u", None)
                    continue
                if instance.seen is ObservedStatus.PAUSED:
                    self.happen(instance, ObservedStatus.RUNNING)
                if not lost:
                    self.reply(instance.id, ObservedStatus.RUNNING, "u", None)
            elif isinstance(decision, JoinCreation):
                self.reconcile()
                if self.row.state is State.STARTING and self.row.instance_id is None:
                    self.create_instance(lost=lost)
            if lost:
                return

    # Rules.

    @rule(lost=st.booleans())
    def wake_it(self, lost: bool) -> None:
        self.wake(lost=lost)

    @rule(lost=st.booleans(), later_s=st.sampled_from([1, 170, 200, 4000]))
    def the_sweep_comes_by(self, lost: bool, later_s: int) -> None:
        self.now += timedelta(seconds=later_s)
        decision = decide_idle(self.row, now=self.now)
        instance = self.mine()
        if instance is None:
            if isinstance(decision, Pause | Kill | Extend) and self.row.instance_id:
                self.reply(self.row.instance_id, ObservedStatus.GONE, SCHEDULER_ACTOR, None)
        elif isinstance(decision, Pause):
            if instance.seen is ObservedStatus.RUNNING:
                self.happen(instance, ObservedStatus.PAUSED)
            if not lost:
                self.reply(instance.id, ObservedStatus.PAUSED, SCHEDULER_ACTOR, None)
        elif isinstance(decision, Kill):
            self.happen(instance, ObservedStatus.KILLED)
            if not lost:
                self.reply(
                    instance.id, ObservedStatus(decision.state.value.lower()), SCHEDULER_ACTOR, None
                )

    @rule(
        seen=st.sampled_from(
            [
                ObservedStatus.RUNNING,
                ObservedStatus.PAUSED,
                ObservedStatus.KILLED,
                ObservedStatus.EXPIRED,
            ]
        )
    )
    def change_it_at_the_provider(self, seen: ObservedStatus) -> None:
        instance = self.mine()
        if instance is not None and instance.seen is not seen:
            self.happen(instance, seen)

    @rule(data=st.data())
    def some_events_arrive(self, data: st.DataObject) -> None:
        if not self.undelivered:
            return
        for seen in data.draw(st.lists(st.sampled_from(self.undelivered), max_size=6)):
            self.record(seen)

    @rule()
    def the_provider_cannot_be_asked(self) -> None:
        if self.row.instance_id is not None:
            seen = Observation(
                self.row.instance_id, ObservedStatus.UNREACHABLE, self.now, Source.GET
            )
            self.record(seen)

    @rule()
    def the_reconciler_runs(self) -> None:
        self.reconcile()

    # What holds after every step.

    @invariant()
    def there_is_always_a_next_check_unless_it_rests(self) -> None:
        rests = self.row.state.is_ended or self.row.state is State.PAUSED
        assert (self.row.next_check_at is None) == rests

    @invariant()
    def an_ended_record_has_its_reason(self) -> None:
        assert (self.row.last_end.killed_reason is not None) == self.row.state.is_ended

    def teardown(self) -> None:
        """Whatever happened: reconciled, the record is true; woken, it runs, and runs once."""
        self.reconcile()
        self.reconcile()
        instance = self.mine()
        if instance is not None:
            assert self.row.state is STATES[instance.seen]
        else:
            assert self.row.state.is_ended or self.row.state is State.STARTING
        self.wake(lost=False)
        instance = self.mine()
        assert self.row.state is State.RUNNING
        assert instance is not None
        assert instance.seen is ObservedStatus.RUNNING
        assert list(self.world) == [instance.id]
        for seen in reversed(self.undelivered):
            self.record(seen)
        assert self.row.state is State.RUNNING


Walk.TestCase.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
TestWalk = Walk.TestCase
