"""Where the engine sends webhooks: to the address that it checked, whatever the DNS says next."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest

from sandkeeper.engine.sandboxes.webhooks import WebhookSender, resolve_receiver

NAME = "receiver.test"


@asynccontextmanager
async def receiving(heads: list[bytes]) -> AsyncIterator[int]:
    """Serve a receiver that notes the heads of its requests; give its port."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        yield server.sockets[0].getsockname()[1]


def resolve_to(monkeypatch: pytest.MonkeyPatch, *answers: list[str]) -> list[str]:
    """Let the name have these addresses, one answer after the other; give the names asked for."""
    asked: list[str] = []
    left = list(answers)

    async def resolve(host: str, port: int, **_: Any) -> list[Any]:
        asked.append(host)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (one, port)) for one in left.pop(0)]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", resolve)
    return asked


async def test_a_name_is_asked_for_once_and_its_address_is_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    heads: list[bytes] = []
    async with receiving(heads) as port:
        # The first address has no server; the second answer would be the credentials of a cloud.
        asked = resolve_to(monkeypatch, ["127.0.0.2", "127.0.0.1"], ["169.254.169.254"])
        sender = WebhookSender(cast(Any, None), "team")
        answer, _ = await sender._post(f"http://{NAME}:{port}/hook", b"{}", {})
        await sender._client.aclose()
    assert answer.status_code == 200
    assert asked == [NAME]
    assert f"host: {NAME}:{port}".encode() in heads[0].lower()


@pytest.mark.parametrize(
    "address", ["169.254.169.254", "fe80::1%lo", "::ffff:169.254.169.254", "0.0.0.0", "224.0.0.1"]
)
async def test_a_name_with_one_special_address_gets_nothing(
    monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    resolve_to(monkeypatch, ["127.0.0.1", address])
    with pytest.raises(ValueError, match="no webhook may be sent"):
        await resolve_receiver(f"http://{NAME}/")
