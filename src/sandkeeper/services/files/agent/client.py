"""The far side: asks the script inside the sandbox, and moves bytes."""

from __future__ import annotations

import asyncio
import base64
import secrets
import shlex
import time
import zlib
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

import e2b
import orjson

from sandkeeper.domain.errors import (
    CaptureUnsupportedError,
    ProviderAmbiguousError,
    SandboxBusyError,
    SandboxDiskFullError,
    SandkeeperError,
)
from sandkeeper.domain.files.ignore_rules import DEFAULT_RULES, SECRET_RULES
from sandkeeper.providers.acting_claim import check_deadline, find_acting_claim
from sandkeeper.providers.base import Provider
from sandkeeper.services.files.agent.bundle import read_script
from sandkeeper.services.files.agent.posix_fallback import (
    REFUSED,
    make_guard_line,
    make_list_line,
    read_list,
)
from sandkeeper.services.files.agent.replies import (
    SeenTree,
    read_reply,
    read_tree,
)
from sandkeeper.settings import Settings

ARGUMENT_MAX: Final = 60_000
"""A longer request is uploaded as a file: the kernel bounds an argument at 128 KiB."""
PARCEL_BYTES: Final = 8 * 1024 * 1024
"""Contents of one parcel. Several are in memory at a time; smaller ones cost more round trips."""
PARCEL_ROWS: Final = 5000
SMALL_BYTES: Final = 4 * 1024 * 1024
"""Files up to this size are whole in a parcel; larger ones come in pieces."""
ROW_BYTES_MAX: Final = 10_000
"""Of one row of a parcel: a path and a target have at most 4096 bytes each."""
WINDOW: Final = 8
"""Parcels of a capture that lie inside at most: more take more room on its disk."""
PATIENCE_S: Final = 600
"""The script stops after this time without a message: its client has died."""
LIST_TIMEOUT_S: Final = 300
STALL_S: Final = 60.0
"""Work inside that says nothing for this long has failed. The script gives a sign of life every ten
seconds. Lower fails a busy sandbox; higher lets a wake or a pause wait for one that hangs.
"""
MISSING = 127


class FencedError(SandboxBusyError, code="sandbox_busy"):
    """A newer operation has worked in this sandbox: this one came too late."""


class NoPythonError(CaptureUnsupportedError):
    """There is no python3 in the sandbox."""


@dataclass(frozen=True, slots=True)
class CaptureLimits:
    """How much may be kept of one sandbox."""

    file_bytes: int
    total_bytes: int
    entries: int

    @classmethod
    def from_settings(cls, settings: Settings) -> CaptureLimits:
        """Return the limits that the settings name."""
        return cls(
            file_bytes=settings.files_file_bytes_max,
            total_bytes=settings.files_total_bytes_max,
            entries=settings.files_count_max,
        )


class AgentClient:
    """One running instance, seen from its work folder.

    `folder` is a place of our own inside, for what is on its way; `part_name` is the name of a file
    that the script is writing, beside its place. `is_plain` is true once it turned
    out that there is no Python. What is asked under a claim is refused inside when a newer claim
    has been there.
    """

    def __init__(
        self,
        native: e2b.AsyncSandbox,
        provider: Provider,
        *,
        sandbox_id: str,
        root: str,
        limits: CaptureLimits,
    ) -> None:
        token = secrets.token_hex(8)
        self.folder = f"/tmp/.sandkeeper-{token}"  # noqa: S108  Inside the sandbox.
        self.part_name = f".{token}.sandkeeper-part"
        self.root = root.rstrip("/") or "/"
        self.is_plain = False
        self._sandbox_id = sandbox_id
        self._is_forced = False
        self._native = native
        self._provider = provider
        self._limits = limits
        self._watches: set[asyncio.Timeout] = set()

    def open_lane(self) -> AgentClient:
        """Return another far side of the same sandbox, with names of its own."""
        return type(self)(
            self._native,
            self._provider,
            sandbox_id=self._sandbox_id,
            root=self.root,
            limits=self._limits,
        )

    def locate(self, path: str) -> str:
        """Return the path inside, from the sandbox's own root."""
        return f"{self.root.rstrip('/')}/{path}"

    async def list_tree(self, *, hash_bytes: int = 0, with_secrets: bool = True) -> SeenTree:
        """List what is there, with hashes up to so many bytes; of everything if negative."""
        entries_max = self._limits.entries
        secret_rules = () if with_secrets else SECRET_RULES
        try:
            answer = await self.request(
                "list",
                rules=DEFAULT_RULES,
                secret_rules=secret_rules,
                entries_max=entries_max,
                hash_bytes=hash_bytes,
            )
        except NoPythonError:
            said = await self.run(make_list_line(self.root))
            answer = await asyncio.to_thread(read_list, said, entries_max, secret_rules)
        tree = await asyncio.to_thread(read_tree, answer)
        sizes = (one.size for one in tree.seen.values())
        total = sum(size for size in sizes if size <= self._limits.file_bytes)
        self.check_limits(is_too_long=bool(answer["too_many"]), total_bytes=total)
        return tree

    async def list_plainly(self, *, with_secrets: bool) -> SeenTree:
        """List what is there, with hashes, where there is no Python."""
        self.is_plain = True
        return await self.list_tree(with_secrets=with_secrets)

    async def begin_capture(
        self,
        known: Mapping[str, tuple[str, str]],
        *,
        with_secrets: bool,
        on_output: Callable[[str], None],
    ) -> e2b.AsyncCommandHandle[str]:
        """Run the script that sends what is not as it is known; see `inside/collect.py`."""
        return await self.begin(
            "capture",
            on_output=on_output,
            known=known,
            rules=DEFAULT_RULES,
            secret_rules=() if with_secrets else SECRET_RULES,
            entries_max=self._limits.entries,
            bytes_max=self._limits.total_bytes,
            file_max=self._limits.file_bytes,
            folder=self.folder,
            parcel_bytes=PARCEL_BYTES,
            parcel_rows=PARCEL_ROWS,
            small_max=SMALL_BYTES,
            window=WINDOW,
            patience_s=PATIENCE_S,
        )

    def check_limits(self, *, is_too_long: bool, total_bytes: int) -> None:
        """Raise CaptureUnsupportedError for more than may be kept."""
        if is_too_long:
            raise CaptureUnsupportedError(
                f"The work folder has more than {self._limits.entries} files.", root=self.root
            )
        if total_bytes > self._limits.total_bytes:
            raise CaptureUnsupportedError(
                f"The work folder holds more than {self._limits.total_bytes} bytes.",
                total=total_bytes,
            )

    @asynccontextmanager
    async def read(self, path: str) -> AsyncIterator[AsyncIterator[bytes]]:
        """Yield the content of one file, as it comes."""
        async with self._translate_errors():
            reader = await self._native.files.read(self.locate(path), format="stream")
        try:
            yield self._guard(reader)
        finally:
            await reader.aclose()

    async def upload(self, path: str, chunks: AsyncIterator[bytes]) -> None:
        """Write a file inside, piece by piece."""
        own_s = 0.0
        failure: SandkeeperError | None = None

        async def make() -> AsyncIterator[bytes]:
            # What it takes to read and prove the contents here is not the provider's time.
            nonlocal own_s, failure
            while True:
                began = time.monotonic()
                try:
                    chunk = await anext(chunks, None)
                except SandkeeperError as error:
                    failure = error
                    raise
                own_s += time.monotonic() - began
                if chunk is None:
                    return
                check_deadline()
                yield chunk

        try:
            async with self._translate_errors():
                began = time.monotonic()
                try:
                    await self._native.files.write(path, make(), use_octet_stream=True)
                finally:
                    self._provider.record_sdk_call("upload", time.monotonic() - began - own_s)
        except SandkeeperError:
            # The client calls whatever stops the content a broken connection.
            if failure is not None:
                raise failure from None
            raise

    def name_part(self, path: str) -> str:
        """Return a name beside the place of a file, from where it is moved there later."""
        folder = path.rpartition("/")[0]
        part = self.locate(f"{folder}/" if folder else "")
        return f"{part.rstrip('/')}/.{secrets.token_hex(8)}.sandkeeper-part"

    async def upload_part(self, part: str, chunks: AsyncIterator[bytes]) -> None:
        """Bring a large file beside its place; nothing of it is left if that fails."""
        try:
            await self.upload(part, chunks)
        except BaseException:
            await self.forget(part)
            raise

    async def forget(self, *paths: str) -> None:
        """Remove what is only ours; if that fails, it stays in the sandbox and does no harm."""
        await self._clean(f"rm -rf {shlex.join(paths)}")

    async def forget_parts(self) -> None:
        """Remove what a script that was killed had written only half, wherever that is."""
        found = shlex.join(["find", self.root, "-name", self.part_name])
        await self._clean(f"{found} -exec rm -f {{}} +")

    async def _clean(self, line: str) -> None:
        try:
            await self._native.commands.run(line, timeout=30)
        except Exception as error:  # noqa: BLE001  Whatever it was, the work itself is done.
            self._provider.translate(error, instance_id=self._native.sandbox_id)

    async def run(self, line: str) -> str:
        """Return what a shell line prints."""
        try:
            return await self._run(line)
        except FencedError:
            await self.insist()
            return await self._run(line)

    async def _run(self, line: str) -> str:
        guarded = make_guard_line(self._make_fence()) + line
        async with self._translate_errors("command"):
            try:
                return (await self._native.commands.run(guarded, timeout=LIST_TIMEOUT_S)).stdout
            except e2b.CommandExitException as error:
                raise self._explain_exit(error) from error

    async def request(self, verb: str, **request: object) -> dict[str, Any]:
        """Return the script's answer. Raises NoPythonError where it cannot run."""
        try:
            return await self._request(verb, request)
        except FencedError:
            await self.insist()
            return await self._request(verb, request)

    async def _request(self, verb: str, request: dict[str, object]) -> dict[str, Any]:
        line = await self._make_line(verb, request)
        async with self._translate_errors("command"):
            try:
                async with self._watching():
                    result = await self._native.commands.run(
                        line, timeout=LIST_TIMEOUT_S, on_stdout=self.hear
                    )
            except e2b.CommandExitException as error:
                raise self._explain_exit(error) from error
        return _accept(await asyncio.to_thread(read_reply, result.stdout))

    async def insist(self) -> None:
        """Overrule a newer number inside, if the database says that this claim is in force.

        Numbers go back when a database is restored from a backup. Raise FencedError otherwise.
        """
        claim = find_acting_claim()
        if claim is None or self._is_forced or not await claim.confirm():
            raise FencedError
        self._is_forced = True

    def _make_fence(self) -> tuple[str, int, bool] | None:
        """Return where the newest claim is noted, this one's number, and whether it is forced."""
        claim = find_acting_claim()
        if claim is None:
            return None
        claim.check()
        return locate_fence(self._sandbox_id), claim.number, self._is_forced

    async def begin(
        self, verb: str, *, on_output: Callable[[str], None], **request: object
    ) -> e2b.AsyncCommandHandle[str]:
        """Run the script on a request that goes on through its input."""
        line = await self._make_line(verb, request)
        async with self._translate_errors("command"):
            return await self._native.commands.run(
                line, background=True, stdin=True, timeout=0, on_stdout=on_output
            )

    async def send(self, handle: e2b.AsyncCommandHandle[str], line: str) -> None:
        """Say one line to a script at work."""
        check_deadline()
        async with self._translate_errors():
            await handle.send_stdin(f"{line}\n")

    async def receive(self, handle: e2b.AsyncCommandHandle[str]) -> dict[str, Any]:
        """Return the answer of a running script, when it has ended."""
        async with self._translate_errors():
            try:
                result = await handle.wait()
            except e2b.CommandExitException as error:
                raise self._explain_exit(error) from error
        return _accept(await asyncio.to_thread(read_reply, result.stdout))

    async def stop(self, handle: e2b.AsyncCommandHandle[str]) -> None:
        """End a script at work; one that has ended, or cannot be reached, is left alone."""
        try:
            await handle.kill()
        except Exception as error:  # noqa: BLE001  It gives up by itself when it hears nothing.
            self._provider.translate(error, instance_id=self._native.sandbox_id)

    @asynccontextmanager
    async def waiting(self) -> AsyncIterator[None]:
        """Count the block's time as the provider's; the script must give signs of life."""
        async with self._translate_errors("command"), self._watching():
            yield

    def hear(self, _said: str) -> None:
        """Note that the script inside gave a sign of life."""
        ends = asyncio.get_running_loop().time() + STALL_S
        for watch in self._watches:
            watch.reschedule(ends)

    @asynccontextmanager
    async def _watching(self) -> AsyncIterator[None]:
        """Raise TimeoutError when nothing is heard from inside for too long."""
        async with asyncio.timeout(STALL_S) as watch:
            self._watches.add(watch)
            try:
                yield
            finally:
                self._watches.discard(watch)

    async def _make_line(self, verb: str, request: dict[str, object]) -> str:
        """Return the command; what is too long for an argument is uploaded."""
        if self.is_plain:
            raise NoPythonError
        fence = self._make_fence()
        body = orjson.dumps({"verb": verb, "root": self.root, "fence": fence, **request})
        text = base64.b64encode(zlib.compress(body, 1)).decode()
        if len(text) > ARGUMENT_MAX:
            path = f"{self.folder}.request"
            await self.upload(path, _once(text.encode()))
            text = f"@{path}"
        return f"exec python3 -I -S -c {shlex.quote(read_script())} {text}"

    async def download(self, number: int) -> bytes:
        """Return the parcel of this number."""
        size_max = PARCEL_BYTES + SMALL_BYTES + PARCEL_ROWS * ROW_BYTES_MAX
        pieces: list[bytes] = []
        total = 0
        async with self._translate_errors("download"):
            reader = await self._native.files.read(f"{self.folder}/{number}", format="stream")
            try:
                async for piece in reader:
                    total += len(piece)
                    if total > size_max:
                        raise ProviderAmbiguousError("The sandbox sent more than was asked for.")
                    pieces.append(piece)
            finally:
                await reader.aclose()
        return b"".join(pieces)

    async def _guard(self, reader: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        async with self._translate_errors():
            async for piece in reader:
                yield piece

    @asynccontextmanager
    async def _translate_errors(self, operation: str = "") -> AsyncIterator[None]:
        """Translate errors; the time of a named operation is counted as the provider's."""
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
                self._provider.record_sdk_call(operation, time.monotonic() - began)

    def _explain_exit(self, error: e2b.CommandExitException) -> Exception:
        if error.exit_code == MISSING:
            self.is_plain = True
            return NoPythonError()
        if error.exit_code == REFUSED:
            return FencedError()
        if "No space left on device" in error.stderr:
            return SandboxDiskFullError()
        last = error.stderr.strip().splitlines()[-1:] or [f"exit code {error.exit_code}"]
        return CaptureUnsupportedError(f"The work inside the sandbox failed: {last[0][:300]}")


async def _once(data: bytes) -> AsyncIterator[bytes]:
    yield data


def locate_fence(sandbox_id: str) -> str:
    """Return the file in a sandbox with the number of the newest claim that worked there."""
    return f"/tmp/.sandkeeper-fence-{sandbox_id}"  # noqa: S108  Inside the sandbox.


def _accept(answer: dict[str, Any]) -> dict[str, Any]:
    if answer.get("refused"):
        raise FencedError
    return answer
