"""`lodging` is a runtime with envd on a port, one for each test file; `guest` a sandbox in it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest_asyncio

from guesting import Guest
from lodging import Lodging, lodging_at
from premade import lend_base

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import pytest


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def lodging(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Lodging]:
    data = lend_base(tmp_path_factory, tmp_path_factory.mktemp("lodging"))
    async with lodging_at(data) as opened:
        yield opened


@pytest_asyncio.fixture(loop_scope="module")
async def guest(lodging: Lodging) -> AsyncIterator[Guest]:
    resident = await lodging.add()
    yield Guest(lodging, resident)
    await lodging.end(resident)
