"""Lists: filters, order, pages."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import uuid4

import pytest
from e2b import Sandbox, SandboxQuery, SandboxState

from support.engine_process import Engine


@pytest.fixture
def fleet(engine: Engine) -> Iterator[tuple[str, list[str]]]:
    """Five sandboxes of one mark, the oldest first; the second is paused."""
    mark = f"a mark/{uuid4().hex}&=ü+"
    boxes = [
        Sandbox.create(
            timeout=600, metadata={"mark": mark, "number": str(n)}, **engine.sdk_options()
        )
        for n in range(5)
    ]
    boxes[1].pause()
    yield mark, [box.sandbox_id for box in boxes]
    for box in boxes:
        box.kill()


def test_pages_hold_everything_once_in_order(engine: Engine, fleet: tuple[str, list[str]]) -> None:
    mark, ids = fleet
    for order, expected in (("desc", ids[::-1]), ("asc", ids)):
        pages = Sandbox.list(
            query=SandboxQuery(metadata={"mark": mark}),
            limit=2,
            order=order,
            **engine.sdk_options(),
        )
        found, sizes = [], []
        while pages.has_next:
            page = pages.next_items()
            sizes.append(len(page))
            found += [one.sandbox_id for one in page]
        assert found == expected
        assert sizes == [2, 2, 1]


def test_a_list_is_filtered_by_state_metadata_and_start(
    engine: Engine, fleet: tuple[str, list[str]]
) -> None:
    mark, ids = fleet

    def listed(**query: object) -> list[str]:
        asked = SandboxQuery(**{"metadata": {"mark": mark}, **query})
        return [
            s.sandbox_id for s in Sandbox.list(query=asked, **engine.sdk_options()).next_items()
        ]

    assert listed(state=[SandboxState.PAUSED]) == [ids[1]]
    assert listed(state=[SandboxState.RUNNING]) == [ids[4], ids[3], ids[2], ids[0]]
    assert listed(metadata={"mark": mark, "number": "3"}) == [ids[3]]
    assert listed(metadata={"mark": mark, "number": "9"}) == []
    assert listed(template="base") == ids[::-1]
    with engine.client() as api:
        third = api.get(f"/sandboxes/{ids[2]}").json()["startedAt"]
        after = api.get("/v2/sandboxes", params={"startedAfter": third, "state": "running"})
        assert set(ids) & {one["sandboxID"] for one in after.json()} == {ids[2], ids[3], ids[4]}
        assert int(after.headers["x-total-running"]) >= 2
        assert "x-next-token" not in after.headers
        old = {one["sandboxID"] for one in api.get("/sandboxes").json()}
        assert set(ids) & old == set(ids) - {ids[1]}
