"""The kept files of one sandbox, available in every state of the sandbox."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import TYPE_CHECKING
from urllib.parse import quote

from sandkeeper.api import schemas
from sandkeeper.client.connection import HttpConnection

if TYPE_CHECKING:
    from sandkeeper.api.schemas.files import (
        CaptureOut,
        CheckpointOut,
        File,
        FileDiff,
        FileEdit,
        NamedVersionOut,
        PathChangeOut,
        RestoreOut,
    )


class AsyncFiles:
    """Reads and edits kept files; an edit is written to a running sandbox immediately."""

    def __init__(self, connection: HttpConnection, sandbox_path: str) -> None:
        self._connection = connection
        self._path = sandbox_path

    async def list(self, prefix: str = "", *, version: int | None = None) -> list[File]:
        """Return all kept files with this prefix, sorted by path."""
        found: list[File] = []
        cursor: str | None = None
        while True:
            page = await self._connection.request(
                schemas.files.FileList,
                "GET",
                f"{self._path}/files",
                query={"prefix": prefix, "version": version, "cursor": cursor},
            )
            found += page.items
            cursor = page.next_cursor
            if cursor is None:
                return found

    async def versions(self, *, named: bool = False) -> Sequence[NamedVersionOut]:
        """Return the versions that are still kept, newest first; with `named`, checkpoints only."""
        found: list[NamedVersionOut] = []
        cursor: str | None = None
        while True:
            page = await self._connection.request(
                schemas.files.VersionPage,
                "GET",
                f"{self._path}/versions",
                query={"named": named, "limit": 500, "cursor": cursor},
            )
            found += page.items
            cursor = page.next_cursor
            if cursor is None:
                return found

    async def diff(self, version: int, *, against: int | None = None) -> Sequence[PathChangeOut]:
        """Return the paths that differ from another version, or from the one saved before it."""
        found: list[PathChangeOut] = []
        cursor: str | None = None
        while True:
            page = await self._connection.request(
                schemas.files.VersionDiff,
                "GET",
                f"{self._path}/versions/{version}/diff",
                query={"against": against, "cursor": cursor},
            )
            found += page.items
            cursor = page.next_cursor
            if cursor is None:
                return found

    async def diff_file(self, path: str, version: int, *, against: int | None = None) -> FileDiff:
        """Compare one file of a version with another one, or with the one saved before it."""
        return await self._connection.request(
            schemas.files.FileDiff,
            "GET",
            f"{self._path}/versions/{version}/diff/{quote(path, safe='/')}",
            query={"against": against},
        )

    async def restore(self, version: int, path: str = "") -> RestoreOut:
        """Restore a file, a folder, or all files as they were; the present ones are saved first.

        The result names the version with the files as they were before, which undoes it. Raise
        WrongStateError for a paused sandbox: wake it first.
        """
        return await self._connection.request(
            schemas.files.RestoreOut,
            "POST",
            f"{self._path}/restore",
            body=schemas.files.RestoreRequest(version=version, path=path),
        )

    async def checkpoint(self, name: str, *, version: int | None = None) -> CheckpointOut:
        """Name a version, which keeps it; without `version`, the files as they are now."""
        return await self._connection.request(
            schemas.files.CheckpointOut,
            "POST",
            f"{self._path}/checkpoints",
            body=schemas.files.CheckpointRequest(name=name, version=version),
        )

    async def delete_checkpoint(self, name: str) -> None:
        """Remove a checkpoint's name; its version is pruned like all others from then on."""
        await self._connection.send("DELETE", f"{self._path}/checkpoints/{quote(name, safe='')}")

    async def read(self, path: str, *, version: int | None = None) -> bytes:
        """Return a kept file's content. Raise SavedFileNotFoundError."""
        response = await self._connection.send("GET", self._of(path), query={"version": version})
        return response.content

    async def write(self, path: str, content: bytes | str, *, mode: int | None = None) -> FileEdit:
        """Keep a file. The result says whether it was written to the sandbox."""
        body = content.encode() if isinstance(content, str) else content
        query = {"mode": None if mode is None else f"{mode:04o}"}
        response = await self._connection.send("PUT", self._of(path), content=body, query=query)
        return schemas.files.FileEdit.model_validate_json(response.content)

    async def delete(self, path: str) -> FileEdit:
        """Delete a file from the kept files and from the sandbox."""
        return await self._connection.request(schemas.files.FileEdit, "DELETE", self._of(path))

    async def capture(self) -> CaptureOut:
        """Capture the files of the running sandbox now."""
        return await self._connection.request(
            schemas.files.CaptureOut, "POST", f"{self._path}/capture"
        )

    async def read_archive(self, *, version: int | None = None) -> AsyncGenerator[bytes, None]:
        """Yield all kept files as a tar archive, in chunks."""
        async for chunk in self._connection.download(
            f"{self._path}/archive", query={"version": version}
        ):
            yield chunk

    async def write_archive(self, content: bytes, *, replace: bool = False) -> FileEdit:
        """Keep all files of an uncompressed tar; with `replace`, delete all others."""
        response = await self._connection.send(
            "PUT", f"{self._path}/archive", content=content, query={"replace": replace}
        )
        return schemas.files.FileEdit.model_validate_json(response.content)

    def _of(self, path: str) -> str:
        return f"{self._path}/files/{quote(path, safe='/')}"
