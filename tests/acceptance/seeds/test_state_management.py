"""The tables of the design for sandbox states: words, actions and colours as they were agreed.

Its test scenarios are in `test_scenarios.py` and `wake/test_wakes.py`.
"""

from __future__ import annotations

import re

import httpx

from sandkeeper.domain.breaker import Breaker
from sandkeeper.domain.states import TRANSITIONS, State
from support.databases import on_both_databases

TABLE = """
| RUNNING | "Live preview ready" | "Sandboxes stay active for 1 hour with smart auto-pause." | Refresh, Copy URL, Open | Green |
| STARTING | "Preparing sandbox…" | "Setting up your development environment…" | Refresh | Blue |
| PAUSED | "Sandbox asleep" | "Auto-paused after 3 minutes of inactivity. Wake it to continue." | Wake, Refresh | Amber |
| KILLED | "Sandbox not found" | "Sandbox was terminated. Wake to create a new one with your files." | Wake, Refresh | Red |
| EXPIRED | "Sandbox expired" | "Reached 1-hour lifetime limit. Wake to create a fresh sandbox." | Wake, Refresh | Orange |
| TERMINATED | "Sandbox stopped" | "Sandbox was shut down. Wake to restart with your project files." | Wake, Refresh | Gray |
| UNKNOWN | "Connection issue" | "Cannot verify sandbox status. Check your connection and try again." | Retry, Wake | Yellow |
"""  # noqa: E501  The rows are as they were written.


@on_both_databases
def test_every_state_has_its_words_actions_and_colour(api: httpx.Client) -> None:
    states = api.get("/api/presentation").json()["states"]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in TABLE.split("\n") if line]
    assert {row[0] for row in rows} == set(states)
    for state, label, caption, actions, badge in rows:
        told = states[state]
        assert (f'"{told["label"]}"', f'"{told["caption"]}"') == (label, caption)
        wanted = [name.lower().replace(" ", "_") for name in actions.split(", ")]
        assert (told["actions"], told["badge"]) == (wanted, badge.lower())
        assert told["pulses"] is (state == "STARTING")


DIAGRAM = """
    STARTING --> RUNNING: Initialization complete
    STARTING --> KILLED: Creation failed

    RUNNING --> PAUSED: Idle timeout (3 min)
    RUNNING --> KILLED: Manual kill via dashboard
    RUNNING --> EXPIRED: Lifetime timeout (1 hour)
    RUNNING --> TERMINATED: System shutdown

    PAUSED --> RUNNING: Wake action
    PAUSED --> KILLED: Manual kill
    PAUSED --> EXPIRED: Lifetime timeout

    KILLED --> STARTING: Wake action (recreate)
    EXPIRED --> STARTING: Wake action (recreate)
    TERMINATED --> STARTING: Wake action (recreate)
    UNKNOWN --> STARTING: Wake action (recreate)

    RUNNING --> UNKNOWN: API verification failed
    PAUSED --> UNKNOWN: API verification failed
    UNKNOWN --> RUNNING: Verification successful
    UNKNOWN --> KILLED: Verified not found
"""

FIELDS = ("status", "lastVerifiedAt", "verificationFailures", "killedAt", "killedReason")


def test_every_arrow_of_the_diagram_is_a_transition() -> None:
    arrows = re.findall(r"(\w+) --> (\w+):", DIAGRAM)
    assert len(arrows) == 17
    missing = [one for one in arrows if State(one[1]) not in TRANSITIONS[State(one[0])]]
    assert missing == []


@on_both_databases
def test_the_wake_button_is_shown_where_the_document_shows_it(api: httpx.Client) -> None:
    states = api.get("/api/presentation").json()["states"]
    shown = {state for state, words in states.items() if "wake" in words["actions"]}
    assert shown == {"PAUSED", "KILLED", "EXPIRED", "TERMINATED", "UNKNOWN"}


@on_both_databases
def test_the_record_has_the_documents_fields(api: httpx.Client, project: str) -> None:
    assert api.put(f"/api/sandboxes/{project}", json={}).status_code == 201
    assert api.delete(f"/api/sandboxes/{project}").is_success
    record = api.get(f"/api/sandboxes/{project}/status").json()
    assert set(FIELDS) <= set(record), sorted(record)
    assert (record["verificationFailures"], record["status"]) == (0, "KILLED")
    assert record["killedAt"]
    assert record["killedReason"]


def test_the_circuit_breaker_has_the_documents_numbers() -> None:
    """After 5 consecutive failures, return UNKNOWN for 30 seconds."""
    breaker = Breaker()
    assert (breaker.failures_max, breaker.open_s) == (5, 30)
