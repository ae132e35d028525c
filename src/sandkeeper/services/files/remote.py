"""The far side: asks the script inside the sandbox, moves bytes, and believes nothing unchecked."""

from __future__ import annotations

import asyncio
import base64
import secrets
import shlex
import time
import zlib
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any, Final

import e2b
import orjson

from sandkeeper.domain.errors import (
    CaptureUnsupportedError,
    ProviderAmbiguousError,
    SandboxDiskFullError,
)
from sandkeeper.domain.ignoring import DEFAULT_RULES
from sandkeeper.domain.manifest import Kind, find_path_problem
from sandkeeper.services.files.contract import Unkept
from sandkeeper.services.files.inside import MARK, make_header
from sandkeeper.services.files.plain import (
    BATCH,
    make_finish_line,
    make_list_line,
    read_list,
    read_lost,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Mapping, Sequence

    from sandkeeper.domain.manifest import Entry
    from sandkeeper.providers.base import Provider

ARGUMENT_MAX: Final = 60_000
"""A longer request goes through the input: the kernel bounds an argument at 128 KiB."""
INPUT_CHUNK: Final = 512 * 1024
ANSWER_BYTES_MAX: Final = 256 * 1024 * 1024
TAR_BYTES: Final = 16 * 1024 * 1024
SMALL_BYTES: Final = 4 * 1024 * 1024
"""Files up to this size travel in a tar; larger ones by themselves."""
PIECE_BYTES: Final = 512 * 1024
LIST_TIMEOUT_S: Final = 300
MISSING = 127


class NoPythonError(CaptureUnsupportedError):
    """There is no python3 in the sandbox."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How much may be kept of one sandbox."""

    file_bytes: int
    total_bytes: int
    entries: int


@dataclass(frozen=True, slots=True)
class Seen:
    """One path as it is inside. `sha256` is empty where it was not computed."""

    path: str
    kind: Kind
    mode: int
    size: int
    mtime_ns: int
    stamp: str
    target: str
    sha256: str


@dataclass(frozen=True, slots=True)
class Tree:
    """What was found inside, and what could not be looked at."""

    seen: Mapping[str, Seen]
    problems: tuple[Unkept, ...]


@dataclass(frozen=True, slots=True)
class Answer:
    """What became of one file that was asked for. `data` is its content if it came in the tar."""

    where: str
    mode: int
    size: int
    mtime_ns: int
    stamp: str
    text: str
    data: bytes | None = None


@dataclass(frozen=True, slots=True)
class PutBack:
    """What a batch left undone."""

    lost: tuple[Unkept, ...]
    removed: int


class Remote:
    """One running instance, seen from its work folder."""

    def __init__(
        self, native: e2b.AsyncSandbox, provider: Provider, *, root: str, limits: Limits
    ) -> None:
        self._native = native
        self._provider = provider
        self._root = root.rstrip("/") or "/"
        self._limits = limits
        self._is_plain = False
        self._seen: Mapping[str, Seen] = {}
        self._folder = f"/tmp/.sandkeeper-{secrets.token_hex(8)}"  # noqa: S108  Inside the sandbox.

    def locate(self, path: str) -> str:
        """The path inside, from the sandbox's own root."""
        return f"{self._root.rstrip('/')}/{path}"

    async def list_tree(self, *, hash_bytes: int = 0) -> Tree:
        """What is there; hashes up to so many bytes, or of everything if it is negative."""
        entries_max = self._limits.entries
        try:
            answer = await self._ask(
                "list", rules=DEFAULT_RULES, entries_max=entries_max, hash_bytes=hash_bytes
            )
        except NoPythonError:
            said = await self._run(make_list_line(self._root))
            answer = await asyncio.to_thread(read_list, said, entries_max)
        if answer["too_many"]:
            raise CaptureUnsupportedError(
                f"The work folder has more than {self._limits.entries} files.", root=self._root
            )
        tree = await asyncio.to_thread(_read_tree, answer)
        self._seen = tree.seen
        sizes = (one.size for one in tree.seen.values())
        total = sum(size for size in sizes if size <= self._limits.file_bytes)
        if total > self._limits.total_bytes:
            raise CaptureUnsupportedError(
                f"The work folder holds more than {self._limits.total_bytes} bytes.", total=total
            )
        return tree

    async def fetch(self, items: Sequence[tuple[str, str]]) -> list[Answer]:
        """As many of these files, given with their known hash, as one tar takes; at least one."""
        try:
            answer = await self._ask(
                "pack",
                folder=self._folder,
                name="out.tar",
                items=items,
                tar_bytes=TAR_BYTES,
                small_max=SMALL_BYTES,
                file_max=self._limits.file_bytes,
            )
        except NoPythonError:
            return [self._answer_plainly(path, known) for path, known in items]
        with _distrust():
            rows = [_read_answer(row) for row in answer["answers"]]
            if not 0 < len(rows) <= len(items):
                raise ValueError(len(rows))
        if any(row.where == "tar" for row in rows):
            raw = await self._download(f"{self._folder}/out.tar")
            with _distrust():
                rows = list(_join(rows, raw))
        await self._remove_folder()
        return rows

    @asynccontextmanager
    async def read(self, path: str) -> AsyncIterator[AsyncIterator[bytes]]:
        """The content of one file, as it comes."""
        async with self._own_words():
            reader = await self._native.files.read(self.locate(path), format="stream")
        try:
            yield self._guard(reader)
        finally:
            await reader.aclose()

    async def put_back(
        self,
        entries: Sequence[Entry],
        contents: Mapping[str, bytes],
        *,
        parts: Mapping[str, str],
        remove: Sequence[tuple[str, int]] = (),
    ) -> PutBack:
        """Put entries in place: small files by content, large ones from the part they came in."""
        items = [
            (
                one.path,
                one.kind,
                one.mode,
                one.mtime_ns,
                one.sha256,
                one.target,
                parts.get(one.path),
            )
            for one in entries
        ]
        small = [one for one in entries if one.kind is Kind.FILE and one.path not in parts]
        if self._is_plain:
            return await self._put_back_plainly(entries, contents, parts, remove)
        tar = f"{self._folder}/in.tar" if small else ""
        try:
            if small:
                await self._upload(tar, _make_tar(contents[one.sha256] for one in small))
            answer = await self._ask("put_back", tar=tar, items=items, remove=remove)
        except NoPythonError:
            await self._remove_folder()
            return await self._put_back_plainly(entries, contents, parts, remove)
        except SandboxDiskFullError:
            await self._remove_folder()
            raise
        with _distrust():
            lost = tuple(_unkept(row) for row in answer["lost"])
            if answer["is_full"]:
                raise SandboxDiskFullError(lost=lost[-1].path if lost else "")
            return PutBack(lost, int(answer["removed"]))

    async def upload_part(self, path: str, chunks: AsyncIterator[bytes]) -> str:
        """Bring a large file beside its place; `put_back` proves it and moves it there."""
        folder = path.rpartition("/")[0]
        part = self.locate(f"{folder}/" if folder else "")
        part = f"{part.rstrip('/')}/.{secrets.token_hex(8)}.sandkeeper-part"
        try:
            await self._upload(part, chunks)
        except BaseException:
            await self._forget(part)
            raise
        return part

    async def write(self, path: str, chunks: AsyncIterator[bytes]) -> None:
        """Write a file in place, as the SDK does."""
        await self._upload(self.locate(path), chunks)

    def _answer_plainly(self, path: str, known: str) -> Answer:
        seen = self._seen[path]
        where = "same" if seen.sha256 == known else "apart"
        return Answer(where, seen.mode, seen.size, seen.mtime_ns, "", seen.sha256)

    async def _put_back_plainly(
        self,
        entries: Sequence[Entry],
        contents: Mapping[str, bytes],
        parts: Mapping[str, str],
        remove: Sequence[tuple[str, int]],
    ) -> PutBack:
        """File by file through the SDK, beside its place first, then moved there by the shell."""
        moved = dict(parts)
        for one in entries:
            if one.kind is Kind.FILE and one.path not in moved:
                moved[one.path] = await self.upload_part(one.path, _once(contents[one.sha256]))
        lost: list[Unkept] = []
        for start in range(0, max(len(entries), 1), BATCH):
            some = entries[start : start + BATCH]
            line = make_finish_line(self._root.rstrip("/"), some, moved, remove)
            lost += [_unkept(row) for row in read_lost(await self._run(line))]
        return PutBack(tuple(lost), len(remove))

    async def _run(self, line: str) -> str:
        async with self._own_words("command"):
            try:
                return (await self._native.commands.run(line, timeout=LIST_TIMEOUT_S)).stdout
            except e2b.CommandExitException as error:
                raise _explain_exit(error) from error

    async def _ask(self, verb: str, **request: object) -> dict[str, Any]:
        if self._is_plain:
            raise NoPythonError
        body = orjson.dumps({"verb": verb, "root": self._root, **request})
        text = base64.b64encode(zlib.compress(body, 1)).decode()
        is_short = len(text) <= ARGUMENT_MAX
        script = shlex.quote(read_script())
        line = f"exec python3 -I -S -c {script} {text if is_short else '-'}"
        async with self._own_words("command"):
            try:
                if is_short:
                    result = await self._native.commands.run(line, timeout=LIST_TIMEOUT_S)
                else:
                    result = await self._run_with_input(line, text)
            except e2b.CommandExitException as error:
                self._is_plain = error.exit_code == MISSING
                raise _explain_exit(error) from error
        return await asyncio.to_thread(_read_reply, result.stdout)

    async def _run_with_input(self, line: str, text: str) -> e2b.CommandResult[str]:
        handle = await self._native.commands.run(
            line, background=True, stdin=True, timeout=LIST_TIMEOUT_S
        )
        try:
            for start in range(0, len(text), INPUT_CHUNK):
                await handle.send_stdin(text[start : start + INPUT_CHUNK])
            await handle.send_stdin("\n")
        except BaseException:
            await handle.kill()
            raise
        return await handle.wait()

    async def _download(self, path: str) -> bytes:
        size_max = TAR_BYTES + SMALL_BYTES + 1024 * 1024
        pieces: list[bytes] = []
        total = 0
        async with self._own_words("download"):
            reader = await self._native.files.read(path, format="stream")
            try:
                async for piece in reader:
                    total += len(piece)
                    if total > size_max:
                        raise ProviderAmbiguousError("The sandbox sent more than was asked for.")
                    pieces.append(piece)
            finally:
                await reader.aclose()
        return b"".join(pieces)

    async def _upload(self, path: str, chunks: AsyncIterator[bytes]) -> None:
        own_s = 0.0

        async def make() -> AsyncIterator[bytes]:
            # What it takes to read and prove the contents here is not the provider's time.
            nonlocal own_s
            while True:
                began = time.monotonic()
                chunk = await anext(chunks, None)
                own_s += time.monotonic() - began
                if chunk is None:
                    return
                yield chunk

        async with self._own_words():
            began = time.monotonic()
            try:
                await self._native.files.write(path, make(), use_octet_stream=True)
            finally:
                self._provider.count_inside("upload", time.monotonic() - began - own_s)

    async def _remove_folder(self) -> None:
        await self._forget(self._folder)

    async def _forget(self, path: str) -> None:
        """Remove what is only ours; if that fails, it stays in the sandbox and harms nobody."""
        try:
            await self._native.commands.run(f"rm -rf {shlex.quote(path)}", timeout=30)
        except Exception as error:  # noqa: BLE001  Whatever it was, the work itself is done.
            self._provider.translate(error, instance_id=self._native.sandbox_id)

    async def _guard(self, reader: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        async with self._own_words():
            async for piece in reader:
                yield piece

    @asynccontextmanager
    async def _own_words(self, operation: str = "") -> AsyncIterator[None]:
        """Translates errors; the time of a named operation is counted as the provider's."""
        began = time.monotonic()
        try:
            yield
        except e2b.NotEnoughSpaceException as error:
            raise SandboxDiskFullError from error
        except Exception as error:
            found = self._provider.translate(error, instance_id=self._native.sandbox_id)
            raise found from error
        finally:
            if operation:
                self._provider.count_inside(operation, time.monotonic() - began)


@cache
def read_script() -> str:
    """The text that runs inside: the rules and the verbs, in one piece."""
    rules = resources.files("sandkeeper.domain").joinpath("ignoring.py").read_text()
    verbs = resources.files("sandkeeper.services.files").joinpath("inside.py").read_text()
    first = "from __future__ import annotations\n"
    # Loading `typing` would take some milliseconds, for a name that is false there.
    text = (rules + verbs).replace("from typing import TYPE_CHECKING\n", "TYPE_CHECKING = False\n")
    kept = [
        line
        for line in text.replace(first, "").splitlines()
        if not line.startswith("from sandkeeper.") and not line.lstrip().startswith("#")
    ]
    return first + "\n".join(kept)


def _explain_exit(error: e2b.CommandExitException) -> Exception:
    if error.exit_code == MISSING:
        return NoPythonError()
    if "No space left on device" in error.stderr:
        return SandboxDiskFullError()
    last = error.stderr.strip().splitlines()[-1:] or [f"exit code {error.exit_code}"]
    return CaptureUnsupportedError(f"The work inside the sandbox failed: {last[0][:300]}")


def _read_reply(text: str) -> dict[str, Any]:
    with _distrust():
        line = next(one for one in reversed(text.splitlines()) if one.startswith(MARK))
        unpacker = zlib.decompressobj()
        body = unpacker.decompress(base64.b64decode(line[len(MARK) :]), ANSWER_BYTES_MAX)
        if unpacker.unconsumed_tail:
            raise ValueError("too long")
        found = orjson.loads(body)
        if not isinstance(found, dict):
            raise TypeError(type(found))
        return found


@contextmanager
def _distrust() -> Iterator[None]:
    """What a sandbox says may be anything; what cannot be read is one error and not many."""
    try:
        yield
    except (ValueError, TypeError, KeyError, IndexError, StopIteration, zlib.error) as error:
        raise ProviderAmbiguousError(
            "The sandbox gave an answer about its files that cannot be read."
        ) from error


def _unkept(row: Sequence[object]) -> Unkept:
    path, reason = row
    return Unkept(str(path)[:4000], str(reason)[:200])


def _read_tree(answer: dict[str, Any]) -> Tree:
    with _distrust():
        problems = [_unkept(row) for row in answer["problems"]]
        seen: dict[str, Seen] = {}
        for row in answer["entries"]:
            one = _read_seen(row)
            if problem := find_path_problem(one.path):
                problems.append(Unkept(one.path[:200], problem))
            else:
                seen[one.path] = one
        return Tree(seen, tuple(problems))


def _read_seen(row: Sequence[Any]) -> Seen:
    path, kind, mode, size, mtime_ns, stamp, text = row
    kind = Kind(kind)
    size = int(size)
    if size < 0 or not isinstance(path, str):
        raise ValueError(size)
    return Seen(
        path=path,
        kind=kind,
        mode=int(mode) & 0o7777,
        size=size,
        mtime_ns=int(mtime_ns),
        stamp=str(stamp),
        target=str(text) if kind is Kind.SYMLINK else "",
        sha256=str(text) if kind is Kind.FILE else "",
    )


def _read_answer(row: Sequence[Any]) -> Answer:
    where, mode, size, mtime_ns, stamp, text = row
    return Answer(
        str(where), int(mode) & 0o7777, int(size), int(mtime_ns), str(stamp), str(text)[:300]
    )


def _join(rows: Sequence[Answer], raw: bytes) -> Iterator[Answer]:
    """Give each answer that is in the tar its content; the members are in the same order."""
    at = 0
    for index, row in enumerate(rows):
        if row.where != "tar":
            yield row
            continue
        name = raw[at : at + 100].rstrip(b"\0")
        size = int(raw[at + 124 : at + 135], 8)
        data = raw[at + 512 : at + 512 + size]
        if name != str(index).encode() or size != row.size or len(data) != size:
            raise ValueError(index)
        at += 512 + size + -size % 512
        yield Answer(row.where, row.mode, size, row.mtime_ns, row.stamp, row.text, data)


async def _once(data: bytes) -> AsyncIterator[bytes]:
    yield data


async def _make_tar(contents: Iterator[bytes]) -> AsyncIterator[bytes]:
    """A tar in pieces of a good size for the network."""
    waiting = bytearray()
    for number, data in enumerate(contents):
        waiting += make_header(str(number), len(data))
        waiting += data
        waiting += bytes(-len(data) % 512)
        if len(waiting) >= PIECE_BYTES:
            yield bytes(waiting)
            waiting.clear()
    yield bytes(waiting)
