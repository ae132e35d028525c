"""Saved files through time: versions with their causes, comparisons, and checkpoints."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from sandkeeper.domain.errors import InvalidRequestError, SavedFileNotFoundError
from sandkeeper.domain.owner import Owner
from sandkeeper.services.files.file_api import FileApi
from sandkeeper.services.files.history.file_history import FileHistory
from sandkeeper.services.files.retention import FileRetention
from support.deps import MovableClock
from support.file_fixtures import HOME, Filing

OWNER = Owner.project("through-time")


async def body(data: bytes) -> AsyncIterator[bytes]:
    yield data


def make_history(filing: Filing) -> FileHistory:
    return FileHistory(filing.deps, filing.versions, filing.files)


async def test_each_version_says_why_it_was_saved_and_what_it_changed(filing: Filing) -> None:
    history = make_history(filing)
    sandbox, native = await filing.boot()
    await native.commands.run(f"cd {HOME} && echo one > a && echo two > b")
    await filing.files.capture(sandbox, native, actor="ada", reason="asked for")
    await native.commands.run(f"cd {HOME} && echo more >> a && rm b && mkdir c && echo x > c/d")
    made = await history.add_checkpoint(sandbox.owner, "after the cleanup", actor="ada")
    assert made.number == 2

    newest, first = await history.list(sandbox.owner, limit=10)
    assert newest.names == ("after the cleanup",)
    assert (newest.version.reason, newest.version.actor) == ("for a checkpoint", "ada")
    assert (newest.version.changed, newest.version.removed) == (3, 1)
    assert (first.version.reason, first.version.changed, first.names) == ("asked for", 2, ())

    found = await history.compare(sandbox.owner, 2, None)
    assert [(one.path, one.verb) for one in found.changes] == [
        ("a", "changed"),
        ("b", "removed"),
        ("c", "added"),
        ("c/d", "added"),
    ]
    text = (await history.compare_file(sandbox.owner, "a", 2, None)).text
    assert text == "--- a\n+++ a\n@@ -1 +1,2 @@\n one\n+more\n"


async def test_what_is_no_text_or_too_long_is_not_compared_here(filing: Filing) -> None:
    history = make_history(filing)
    editing = FileApi(filing.deps, filing.versions, filing.files)
    contents = {
        "binary": (b"\0\1", b"\0\2"),
        "large": (b"x" * 300_000, b""),
        "long": (b"", b"".join(b"%d\n" % number for number in range(6000))),
        "no-end": (b"a\r\nb", b"a\r\nb\x0cc\n"),
    }
    for path, (before, _) in contents.items():
        await editing.put(OWNER, path, body(before))
    for path, (_, after) in contents.items():
        await editing.put(OWNER, path, body(after))

    async def compare(path: str) -> str | None:
        found = await history.compare_file(OWNER, path, 8, 4)
        return found.problem or found.text

    assert await compare("binary") == "binary"
    assert await compare("large") == await compare("long") == "too_large"
    assert await compare("no-end") == (
        "--- no-end\n+++ no-end\n@@ -1,2 +1,2 @@\n a\r\n-b\n\\ No newline at end of file\n+b\x0cc\n"
    )
    for path in ("nowhere", "a/../b"):
        with pytest.raises((SavedFileNotFoundError, InvalidRequestError)):
            await history.compare_file(OWNER, path, 8, 4)


async def test_the_contents_of_a_checkpoint_outlive_every_pruning(filing: Filing) -> None:
    history = make_history(filing)
    editing = FileApi(filing.deps, filing.versions, filing.files)
    for number in range(4):
        await editing.put(OWNER, "a", body(b"content %d" % number))
    await history.add_checkpoint(OWNER, "the first", number=1, actor="ada")
    clock = MovableClock()
    clock.advance(days=400)
    settings = filing.deps.settings.model_copy(update={"files_versions_kept": 1})
    retention = FileRetention(replace(filing.deps, clock=clock, settings=settings), filing.packs)

    assert (await retention.prune()).versions == 2
    entry = await editing.find(OWNER, "a", 1)
    assert b"".join([piece async for piece in editing.stream(entry)]) == b"content 0"
    await history.remove_checkpoint(OWNER, "the first")
    await retention.prune()
    with pytest.raises(SavedFileNotFoundError):
        await editing.find(OWNER, "a", 1)


@pytest.mark.parametrize("name", ["", " ", "..", " a", "a\nb", "x" * 101, "12", "\u202e"])
async def test_a_checkpoint_has_a_name_that_people_can_read(filing: Filing, name: str) -> None:
    with pytest.raises(InvalidRequestError):
        await make_history(filing).add_checkpoint(OWNER, name, number=1, actor="ada")
