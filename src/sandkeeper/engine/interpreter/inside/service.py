"""The service on the interpreter's port: a small HTTP server over contexts.

    GET    /health                  check that it runs
    POST   /execute                 run code; the answer is a line of JSON for each thing that comes
    GET    /contexts                list them          POST   /contexts              make one
    DELETE /contexts/{id}           remove one         POST   /contexts/{id}/restart forget all

One request a connection. A caller who leaves while code runs has it interrupted.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
import socket
import sys
from typing import TYPE_CHECKING, Any

from sandkeeper.engine.interpreter.inside.contexts import (
    CodeContext,
    CodeContexts,
    ContextRefusedError,
    UnknownContextError,
    check_env,
)
from sandkeeper.engine.interpreter.inside.languages import MissingLanguageError

if TYPE_CHECKING:
    from collections.abc import Mapping

BODY_MAX_BYTES = 16 * 1024 * 1024
_HEAD_MAX_BYTES = 64 * 1024
_REASONS = {200: "OK", 201: "Created", 204: "No Content", 400: "Bad Request", 404: "Not Found"}


class Service:
    """Answers one connection after the other, many at a time."""

    def __init__(self, contexts: CodeContexts) -> None:
        self._contexts = contexts

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Read one request and answer it."""
        try:
            method, path, body = await _read_request(reader)
            await self._answer(method, path, body, reader, writer)
        except ContextRefusedError as error:
            await _send(writer, 400, {"message": str(error)})
            await _drain(reader)
        # The JavaScript SDK passes on the words of a 404, and of no other refusal.
        except (UnknownContextError, MissingLanguageError) as error:
            await _send(writer, 404, {"message": str(error)})
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # The client disconnected or did not speak HTTP; no response is possible.
        finally:
            with contextlib.suppress(ConnectionError):
                writer.close()

    async def _answer(
        self,
        method: str,
        path: str,
        body: bytes,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        parts = [part for part in path.partition("?")[0].split("/") if part]
        if method == "POST" and parts == ["execute"]:
            await self._execute(_parse(body), reader, writer)
        elif method == "GET" and parts == ["health"]:
            await _send(writer, 200, {"status": "ok"})
        elif parts == ["contexts"] and method == "GET":
            await _send(writer, 200, self._contexts.list_all())
        elif parts == ["contexts"] and method == "POST":
            fields = _parse(body)
            made = self._contexts.create(_text(fields, "language"), _text(fields, "cwd"))
            await made.warm_up()
            await _send(writer, 201, made.describe())
        elif len(parts) == 2 and parts[0] == "contexts" and method == "DELETE":
            self._contexts.remove(parts[1])
            await _send(writer, 204, None)
        elif len(parts) == 3 and (parts[0], parts[2], method) == ("contexts", "restart", "POST"):
            self._contexts.get(parts[1]).restart()
            await _send(writer, 204, None)
        else:
            await _send(writer, 404, {"message": f"{method} {path[:200]} is not served here"})

    async def _execute(
        self, fields: dict[str, Any], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        code = _text(fields, "code")
        if code is None:
            raise ContextRefusedError("code is missing")
        env = check_env(fields.get("env_vars"))
        context_id = _text(fields, "context_id")
        if context_id is None:
            context = self._contexts.get_default(_text(fields, "language"))
        else:
            context = self._contexts.get(context_id)
        running = asyncio.ensure_future(_stream(context, code, env, writer))
        leaving = asyncio.ensure_future(reader.read(1))
        try:
            await asyncio.wait({running, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if not running.done():
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)
            else:
                running.result()
        finally:
            leaving.cancel()


async def _stream(
    context: CodeContext, code: str, env: Mapping[str, str], writer: asyncio.StreamWriter
) -> None:
    is_begun = False

    async def emit(message: dict[str, Any]) -> None:
        nonlocal is_begun
        if not is_begun:
            is_begun = True
            writer.write(
                b"HTTP/1.1 200 OK\r\nContent-Type: application/x-ndjson\r\n"
                b"Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
            )
        line = json.dumps(message).encode() + b"\n"
        writer.write(b"%x\r\n%b\r\n" % (len(line), line))
        await writer.drain()

    await context.execute(code, env, emit)
    writer.write(b"0\r\n\r\n")
    await writer.drain()


async def _read_request(reader: asyncio.StreamReader) -> tuple[str, str, bytes]:
    head = await reader.readuntil(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    words = first.split(" ")
    if len(words) != 3:
        raise ContextRefusedError("this is no HTTP request")
    fields = {}
    for line in lines:
        name, _, value = line.partition(":")
        fields[name.strip().lower()] = value.strip()
    if fields.get("transfer-encoding", "").lower() == "chunked":
        return words[0], words[1], await _read_chunks(reader)
    length = fields.get("content-length") or "0"
    if not (length.isascii() and length.isdigit()) or len(length) > 12:
        raise ContextRefusedError("the content length is invalid")
    _check_size(int(length))
    return words[0], words[1], await reader.readexactly(int(length))


async def _read_chunks(reader: asyncio.StreamReader) -> bytes:
    body = bytearray()
    while True:
        line = (await reader.readuntil(b"\r\n")).split(b";")[0]
        try:
            size = int(line, 16)
        except ValueError:
            raise ContextRefusedError("the body's pieces have no length") from None
        _check_size(len(body) + size)
        body += await reader.readexactly(size)
        await reader.readuntil(b"\r\n")
        if size == 0:
            return bytes(body)


def _check_size(size: int) -> None:
    if not 0 <= size <= BODY_MAX_BYTES:
        raise ContextRefusedError(f"the body is longer than {BODY_MAX_BYTES // (1024 * 1024)} MB")


def _parse(body: bytes) -> dict[str, Any]:
    try:
        fields = json.loads(body or b"{}")
    except ValueError:
        raise ContextRefusedError("the body is no JSON") from None
    if not isinstance(fields, dict):
        raise ContextRefusedError("the body must be an object")
    return fields


def _text(fields: dict[str, Any], name: str) -> str | None:
    value = fields.get(name)
    if value is not None and not isinstance(value, str):
        raise ContextRefusedError(f"{name} must be text")
    return value


async def _send(writer: asyncio.StreamWriter, status: int, content: object) -> None:
    body = b"" if status == 204 else json.dumps(content).encode()
    length = b"" if status == 204 else b"Content-Length: %d\r\n" % len(body)
    head = f"HTTP/1.1 {status} {_REASONS[status]}\r\nContent-Type: application/json\r\n"
    writer.write(head.encode() + length + b"Connection: close\r\n\r\n" + body)
    with contextlib.suppress(ConnectionError):
        await writer.drain()


async def _drain(reader: asyncio.StreamReader) -> None:
    """Let a caller finish speaking; hanging up on it would take the answer away again."""
    left = 16 * BODY_MAX_BYTES
    with contextlib.suppress(ConnectionError):
        while left > 0 and (data := await reader.read(_HEAD_MAX_BYTES)):
            left -= len(data)


def main(texts: Mapping[str, str], port: int) -> None:
    """Open the port, let the caller go, and serve for as long as the sandbox lives."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(("127.0.0.1", port))
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            return  # Another one listens already; one is enough.
        sys.exit(f"the port {port} cannot be opened: {error}")
    listener.listen(128)
    if os.fork():
        return
    os.setsid()
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in range(3):
        os.dup2(nowhere, descriptor)
    asyncio.run(_serve(Service(CodeContexts(texts)), listener))


async def _serve(service: Service, listener: socket.socket) -> None:
    server = await asyncio.start_server(service.serve, sock=listener, limit=_HEAD_MAX_BYTES)
    await server.serve_forever()
