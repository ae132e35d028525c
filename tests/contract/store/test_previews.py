"""Share links, domains and lists of requests in both databases."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta

from sandkeeper.domain.gateway.links import PreviewDomain, PreviewRequest, ShareLink
from sandkeeper.domain.owner import Owner
from sandkeeper.store import Store
from sandkeeper.store.gateway.requests import KEPT
from support.records import T0

OWNER = Owner.project("shop")
LINK = ShareLink("ln", OWNER, "digest", None, "/", 1, T0, "me", T0 + timedelta(hours=1))


async def test_a_link_that_opens_once_opens_once_however_many_ask(store: Store) -> None:
    await store.share_links.add(LINK)
    asked = [store.share_links.use(OWNER, None, "digest", now=T0) for _ in range(8)]
    opened = [one for one in await asyncio.gather(*asked) if one is not None]
    assert [one.uses for one in opened] == [1]
    (listed,) = await store.share_links.list(OWNER, now=T0, limit=10)
    assert listed == replace(LINK, uses=1)


async def test_a_link_is_good_for_its_owner_and_port_until_it_ends(store: Store) -> None:
    await store.share_links.add(replace(LINK, uses_max=None, port=3000))

    async def use(owner: Owner = OWNER, port: int | None = 3000, after_s: int = 0) -> bool:
        now = T0 + timedelta(seconds=after_s)
        return await store.share_links.use(owner, port, "digest", now=now) is not None

    assert await use()
    assert await use()
    assert not await use(Owner.project("other"))
    assert not await use(port=None)
    assert not await use(port=8000)
    assert not await use(after_s=3600)
    assert not await store.share_links.revoke(Owner.project("other"), "ln", now=T0)
    assert await store.share_links.revoke(OWNER, "ln", now=T0)
    assert await store.share_links.revoke(OWNER, "ln", now=T0)
    assert not await use()
    assert await store.share_links.list(OWNER, now=T0, limit=10) == []


async def test_a_domain_belongs_to_who_came_first(store: Store) -> None:
    domain = PreviewDomain("shop.test", OWNER, None, T0, "me")
    assert await store.preview_domains.add(domain)
    assert not await store.preview_domains.add(replace(domain, owner=Owner.project("other")))
    assert await store.preview_domains.list(limit=10) == [domain]
    assert await store.preview_domains.remove("shop.test")
    assert not await store.preview_domains.remove("shop.test")


async def test_only_the_last_requests_of_each_sandbox_are_kept(store: Store) -> None:
    def lines(sandbox_id: str, count: int) -> list[PreviewRequest]:
        one = PreviewRequest(sandbox_id, T0, "GET", "/", 200, 1, 0, 0, "navigation", "public")
        return [replace(one, took_ms=number) for number in range(count)]

    await store.preview_requests.append(lines("quiet", 1))
    for _ in range(2):
        await store.preview_requests.append(lines("busy", KEPT - 10))
    busy = await store.preview_requests.list("busy", limit=1000)
    assert len(busy) == KEPT
    assert busy[0].took_ms == KEPT - 11
    assert len(await store.preview_requests.list("quiet")) == 1


async def test_an_owner_whose_id_is_no_host_name_is_found_by_its_name(store: Store) -> None:
    assert await store.sandboxes.find_owner_by_preview_name("my-shop--moonluscbfu6a2m3") is None
