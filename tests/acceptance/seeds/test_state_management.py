"""The tables of the design for sandbox states: words, actions and colours as they were agreed.

Its test scenarios are in `test_scenarios.py` and `wake/test_wakes.py`.
"""

from __future__ import annotations

import httpx

TABLE = """
| RUNNING | "Live preview ready" | "Sandboxes stay active for 1 hour with smart auto-pause." | Refresh, Copy URL, Open | Green |
| STARTING | "Preparing sandbox…" | "Setting up your development environment…" | Refresh | Blue |
| PAUSED | "Sandbox asleep" | "Auto-paused after 3 minutes of inactivity. Wake it to continue." | Wake, Refresh | Amber |
| KILLED | "Sandbox not found" | "Sandbox was terminated. Wake to create a new one with your files." | Wake, Refresh | Red |
| EXPIRED | "Sandbox expired" | "Reached 1-hour lifetime limit. Wake to create a fresh sandbox." | Wake, Refresh | Orange |
| TERMINATED | "Sandbox stopped" | "Sandbox was shut down. Wake to restart with your project files." | Wake, Refresh | Gray |
| UNKNOWN | "Connection issue" | "Cannot verify sandbox status. Check your connection and try again." | Retry, Wake | Yellow |
"""  # noqa: E501  The rows are as they were written.


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
