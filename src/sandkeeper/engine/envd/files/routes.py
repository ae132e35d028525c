"""`/files`: whole files in and out over plain HTTP."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import AsyncIterator, Mapping
from posixpath import basename
from urllib.parse import parse_qs

import orjson

from sandkeeper.engine.envd.files.download import send_file
from sandkeeper.engine.envd.files.rooted_fs import NotPlainError, is_process_file
from sandkeeper.engine.envd.files.upload import (
    FileSink,
    MetadataError,
    decompressed,
    parse_metadata,
    read_body,
    read_parts,
)
from sandkeeper.engine.envd.users import InvalidUsernameError, User, find_user
from sandkeeper.engine.http.active_requests import current_request
from sandkeeper.engine.http.responses import EnvdRefusedError, send_bytes, send_json
from sandkeeper.engine.runtime.contract import Command, Runtime
from sandkeeper.engine.sandboxes.commands import run_to_end
from sandkeeper.relay.asgi import Receive, Scope, Send, header

COMPOSE_MAX_BYTES = 1024 * 1024
"""A request to put files together names them; it does not carry them."""

COPY_BYTES = 1024 * 1024

PROCESS_FILE_MAX_BYTES = 16 * 1024 * 1024
PROCESS_FILE_WITHIN_S = 10.0
"""For a file of `/proc`: what is longer is cut, and what takes longer is refused."""


_WORDS = {
    errno.ENOENT: (404, "path '{path}' does not exist"),
    errno.EISDIR: (400, "path '{path}' is a directory"),
    errno.ENOTDIR: (400, "path '{path}' leads through a file"),
    errno.ENOSPC: (507, "not enough disk space available"),
    errno.EDQUOT: (507, "not enough disk space available"),
    errno.EINVAL: (400, "invalid path: {reason}"),
    errno.ENAMETOOLONG: (400, "invalid path: {reason}"),
    errno.ELOOP: (400, "invalid path: {reason}"),
    errno.EACCES: (403, "path '{path}': {reason}"),
    errno.EPERM: (403, "path '{path}': {reason}"),
    errno.EROFS: (403, "path '{path}': {reason}"),
}


_NUMBER_OF = {os.strerror(one): one for one in (errno.ENOENT, errno.EISDIR, errno.ENOTDIR)}


class FileRoutes:
    """Reads and writes whole files of the sandbox that the current request names."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        query = parse_qs(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        path = query.get("path", [""])[0]
        route = (scope["method"], scope["path"])
        if scope["method"] == "POST" and self._runtime.is_full(current_request().sandbox_id):
            raise EnvdRefusedError(*_WORDS[errno.EDQUOT])
        try:
            if route == ("POST", "/files/compose"):
                await self._compose(receive, send)
                return
            user = self._user(query.get("username", [""])[0])
            if route == ("POST", "/files"):
                await self._write(scope, receive, send, user, path)
            elif route in (("GET", "/files"), ("HEAD", "/files")):
                await self._read(scope, send, user, user.expand(path))
            else:
                raise EnvdRefusedError(405, f"{scope['method']} is not allowed on {scope['path']}")
        except OSError as error:
            raise _refusal(error) from error

    async def _read(self, scope: Scope, send: Send, user: User, path: str) -> None:
        if _is_process_file(user, path):
            body = await self._read_inside(user, path)
            await send_bytes(send, 200, body, [(b"content-type", b"application/octet-stream")])
        else:
            await send_file(scope, send, user.tree, path)

    async def _read_inside(self, user: User, path: str) -> bytes:
        """Read a file of `/proc` as the user's own process does: the engine may be root."""
        body, said = bytearray(), bytearray()

        def collect(data: bytes) -> None:
            body.extend(data[: PROCESS_FILE_MAX_BYTES - len(body)])

        command = Command(
            argv=("/bin/cat", "--", path), env={"LC_ALL": "C"}, user=user.name, stdin=False
        )
        sandbox_id = current_request().sandbox_id
        try:
            code = await run_to_end(
                self._runtime,
                sandbox_id,
                command,
                on_output=collect,
                on_error=said.extend,
                within_s=PROCESS_FILE_WITHIN_S,
            )
        except TimeoutError:
            raise EnvdRefusedError(500, f"{path} has no end") from None
        if code != 0:
            reason = said.decode(errors="replace").strip().rpartition(": ")[2]
            number = _NUMBER_OF.get(reason, errno.EACCES)
            raise OSError(number, reason.lower(), path)
        return bytes(body)

    def _user(self, name: str | None) -> User:
        try:
            return find_user(self._runtime, current_request().sandbox, name or None)
        except InvalidUsernameError as error:
            raise EnvdRefusedError(401, str(error)) from None

    async def _write(
        self, scope: Scope, receive: Receive, send: Send, user: User, path: str
    ) -> None:
        try:
            metadata = parse_metadata(scope["headers"])
        except MetadataError as error:
            raise EnvdRefusedError(400, str(error)) from None
        body = decompressed(read_body(receive), header(scope, b"content-encoding"))
        content_type = header(scope, b"content-type") or ""
        if content_type.startswith("multipart/form-data"):
            written = await self._write_parts(read_parts(body, content_type), user, path, metadata)
        elif content_type.startswith("application/octet-stream"):
            if not path:
                raise EnvdRefusedError(400, "path is required for application/octet-stream uploads")
            written = [user.expand(path)]
            async with FileSink(user.tree, written[0], metadata) as sink:
                async for data in body:
                    await sink.write(data)
        else:
            raise EnvdRefusedError(400, f"unsupported content type: '{content_type}'")
        await send_json(send, 200, [_render(name, metadata) for name in written])

    async def _write_parts(
        self,
        parts: AsyncIterator[str | bytes],
        user: User,
        path: str,
        metadata: Mapping[str, str],
    ) -> list[str]:
        """Write every part to its own file. A name begins a part, bytes belong to the last one."""
        written: list[str] = []
        sink: FileSink | None = None
        try:
            async for item in parts:
                if isinstance(item, bytes):
                    assert sink is not None
                    await sink.write(item)
                    continue
                if sink is not None:
                    await sink.close()
                target = user.expand(path or item)
                if target in written:
                    raise EnvdRefusedError(400, f"you cannot upload multiple files to '{target}'")
                written.append(target)
                sink = FileSink(user.tree, target, metadata)
                await sink.open()
            if sink is not None:
                await sink.close()
        finally:
            if sink is not None:
                sink.abandon()
        return written

    async def _compose(self, receive: Receive, send: Send) -> None:
        """Put files together, in the order given, into one."""
        sources, destination, username = await _read_compose(receive)
        user = self._user(username)
        target = user.expand(destination)
        paths = [user.expand(source) for source in sources]
        if target in paths:
            raise EnvdRefusedError(400, "the destination is one of the sources")
        await asyncio.to_thread(_concatenate, user, paths, target)
        await send_json(send, 200, _render(target, {}))


async def _read_compose(receive: Receive) -> tuple[list[str], str, str | None]:
    raw = b""
    async for data in read_body(receive):
        raw += data
        if len(raw) > COMPOSE_MAX_BYTES:
            raise EnvdRefusedError(413, f"the request is larger than {COMPOSE_MAX_BYTES} bytes")
    try:
        asked = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise EnvdRefusedError(400, f"malformed JSON: {error}") from None
    fields = asked if isinstance(asked, dict) else {}
    sources, destination = fields.get("source_paths"), fields.get("destination")
    username = fields.get("username")
    if (
        not isinstance(sources, list)
        or not sources
        or not all(isinstance(source, str) and source for source in sources)
        or not isinstance(destination, str)
        or not destination
        or not isinstance(username, str | None)
    ):
        raise EnvdRefusedError(400, "source_paths (a list of paths) and destination are required")
    return sources, destination, username


def _concatenate(user: User, sources: list[str], target: str) -> None:
    for source in sources:
        # A missing source is found before the target is touched.
        os.close(user.tree.open_file(source))
    writing = user.tree.create_file(target)
    try:
        for source in sources:
            reading = user.tree.open_file(source)
            try:
                while data := os.read(reading, COPY_BYTES):
                    view = memoryview(data)
                    while view:
                        view = view[os.write(writing, view) :]
            finally:
                os.close(reading)
    finally:
        os.close(writing)


def _render(path: str, metadata: Mapping[str, str]) -> dict[str, object]:
    entry: dict[str, object] = {"path": path, "name": basename(path), "type": "file"}
    if metadata:
        entry["metadata"] = dict(metadata)
    return entry


def _refusal(error: OSError) -> EnvdRefusedError:
    """Return the kernel's error in envd's words."""
    path = error.filename
    if isinstance(error, NotPlainError):
        return EnvdRefusedError(400, f"path '{path}' is not a regular file")
    status, words = _WORDS.get(error.errno or 0, (500, "{path}: {reason}"))
    return EnvdRefusedError(status, words.format(path=path, reason=error.strerror))


def _is_process_file(user: User, path: str) -> bool:
    """Return whether it is a file of `/proc`, where `self` means the process that reads."""
    if path.startswith("/proc/"):
        return True
    with user.tree.at(path) as found:
        return is_process_file(found)
