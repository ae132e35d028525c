"""Logins and client tokens in both databases."""

from __future__ import annotations

from sandkeeper.domain.owner import Owner
from sandkeeper.domain.token import IssuedToken, TokenUse
from sandkeeper.store import Store
from support.records import T0, at


def login(token_id: str, ttl_s: float = 60) -> IssuedToken:
    return IssuedToken(token_id, TokenUse.LOGIN, T0, at(ttl_s), role="operator")


def client(token_id: str, ttl_s: float = 60) -> IssuedToken:
    return IssuedToken(token_id, TokenUse.CLIENT, T0, at(ttl_s), owner=Owner.project("shop"))


async def ids(store: Store, use: TokenUse, seconds: float = 0) -> list[str]:
    return [one.id for one in await store.tokens.list(use, now=at(seconds))]


async def test_tokens_are_listed_by_use_newest_first_and_page_by_page(store: Store) -> None:
    for one in (login("l1"), client("c1"), client("c2"), login("l2"), client("c3", ttl_s=1)):
        assert await store.tokens.add(one)
    assert not await store.tokens.add(login("l1")), "an id is written down once"
    assert await ids(store, TokenUse.LOGIN) == ["l2", "l1"]
    assert await ids(store, TokenUse.CLIENT) == ["c3", "c2", "c1"]
    assert await ids(store, TokenUse.CLIENT, seconds=2) == ["c2", "c1"]
    (newest,) = await store.tokens.list(TokenUse.CLIENT, now=at(2), limit=1)
    assert newest.owner == Owner.project("shop")
    (next_one,) = await store.tokens.list(TokenUse.CLIENT, now=at(2), before=newest.number)
    assert next_one.id == "c1"


async def test_a_revocation_is_seen_by_its_stamp_and_holds_until_the_token_expires(
    store: Store,
) -> None:
    await store.tokens.add(login("l1"))
    await store.tokens.add(login("l2"))
    assert await store.tokens.read_stamp() is None
    assert await store.tokens.revoke("l1", TokenUse.LOGIN, now=at(1))
    first = await store.tokens.read_stamp()
    assert first is not None
    assert await store.tokens.revoke("l1", TokenUse.LOGIN, now=at(2)), "again is no error"
    assert not await store.tokens.revoke("l2", TokenUse.CLIENT, now=at(2)), "of another use"
    assert not await store.tokens.revoke("none", TokenUse.LOGIN, now=at(2))
    assert await store.tokens.read_stamp() == first, "nothing new"
    assert await store.tokens.list_revoked(now=at(3)) == {"l1"}
    assert await ids(store, TokenUse.LOGIN) == ["l2"]
    assert await store.tokens.list_revoked(now=at(61)) == set()


async def test_an_unknown_id_is_revoked_ahead_and_a_known_one_is_not_taken_for_it(
    store: Store,
) -> None:
    await store.tokens.add(login("l1"))
    assert await store.tokens.forbid(client("made-elsewhere"))
    assert not await store.tokens.forbid(client("made-elsewhere"))
    assert not await store.tokens.forbid(client("l1"))
    assert await store.tokens.list_revoked(now=T0) == {"made-elsewhere"}
    assert await ids(store, TokenUse.CLIENT) == []


async def test_what_has_expired_is_pruned_and_nothing_else(store: Store) -> None:
    for one in (login("old", ttl_s=1), client("older", ttl_s=1), login("good")):
        await store.tokens.add(one)
    await store.tokens.revoke("good", TokenUse.LOGIN, now=T0)
    pruned = await store.prune(ended_before=T0, before=T0, now=at(2))
    assert pruned.others == 2
    assert await store.tokens.list_revoked(now=at(2)) == {"good"}, "still worth remembering"
