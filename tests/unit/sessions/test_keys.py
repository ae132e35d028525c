"""Keys, folders and what a pool decides: pure."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandkeeper.domain.decisions.pool import (
    Backoff,
    Fill,
    Pool,
    check_template,
    decide_fill,
    find_retry_at,
)
from sandkeeper.domain.errors import InvalidRequestError
from sandkeeper.domain.sessions.session import (
    SHARED_FOLDER,
    KeySource,
    SessionKind,
    find_folder,
    find_shared_home,
    resolve_key,
)

NOW = datetime(2026, 1, 2, tzinfo=UTC)


def test_the_task_comes_before_the_conversation_and_that_before_a_new_id() -> None:
    assert str(resolve_key("u", task_id="t", conversation_id="c")) == "u:t"
    key = resolve_key("u", task_id="", conversation_id="local-1")
    assert (str(key), key.source) == ("u:local-1", KeySource.CONVERSATION)
    new = resolve_key("u")
    assert new.source is KeySource.GENERATED
    assert uuid.UUID(new.task_id)
    assert resolve_key("u") != new


@pytest.mark.parametrize("user", ["", " ", "\n", "x" * 201, "a\x00b"])
def test_a_user_without_a_name_is_refused(user: str) -> None:
    with pytest.raises(InvalidRequestError):
        resolve_key(user, task_id="t")


def test_an_unknown_kind_is_refused_with_the_list_of_known_ones() -> None:
    with pytest.raises(InvalidRequestError, match="execution, desktop"):
        SessionKind.parse("spaceship")


@given(st.text(min_size=1, max_size=200), st.text(min_size=1, max_size=200))
def test_two_conversations_never_share_a_folder_nor_leave_it(one: str, two: str) -> None:
    folder = find_folder(one)
    assert folder.startswith(f"{SHARED_FOLDER}/")
    name = folder.removeprefix(f"{SHARED_FOLDER}/")
    assert "/" not in name
    assert name not in (".", "..")
    assert (folder == find_folder(two)) == (one == two)


def test_a_users_shared_home_is_found_by_everybody_and_differs_by_kind() -> None:
    homes = {find_shared_home(kind, user) for kind in SessionKind for user in ("ann", "bob")}
    assert len(homes) == 4
    assert find_shared_home(SessionKind.DESKTOP, "ann") in homes


def test_a_pool_makes_what_is_missing_and_one_at_a_time_after_a_failure() -> None:
    def decide(pool: Pool, members: int) -> Fill | Backoff:
        return decide_fill(pool, members=members, failures_max=3, now=NOW)

    assert decide(Pool("t", 5), 2) == Fill(3)
    assert isinstance(decide(Pool("t", 5), 5), Backoff)
    soon = NOW + timedelta(seconds=1)
    assert decide(Pool("t", 5, failures=1, retry_at=soon), 0) == Backoff(
        "the last creation failed", soon
    )
    assert decide(Pool("t", 5, failures=1, retry_at=NOW), 0) == Fill(1)
    stopped = decide(Pool("t", 5, failures=3, retry_at=NOW), 0)
    assert isinstance(stopped, Backoff)
    assert stopped.until is None


def test_the_pauses_between_failures_grow_and_are_bounded() -> None:
    waits = [(find_retry_at(number, NOW) - NOW).total_seconds() for number in range(1, 2000)]
    assert waits[:3] == [5, 10, 20]
    assert waits == sorted(waits)
    assert max(waits) == 300


@pytest.mark.parametrize("name", ["", " ", "a#b", "x" * 121, "a\nb"])
def test_what_no_template_is_called_is_refused(name: str) -> None:
    with pytest.raises(InvalidRequestError):
        check_template(name)
