"""Saved files through time: versions with their causes, comparisons, and checkpoints."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from sandkeeper.domain.errors import (
    InvalidRequestError,
    SavedFileNotFoundError,
    WrongStateError,
)
from sandkeeper.domain.owner import Owner
from sandkeeper.domain.states import State
from sandkeeper.services.files.file_api import FileApi
from sandkeeper.services.files.history.file_history import FileHistory
from sandkeeper.services.files.history.version_restore import VersionRestore
from sandkeeper.services.files.retention import FileRetention
from support.deps import MovableClock
from support.file_fixtures import HOME, Filing, digest

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


def make_restore(filing: Filing) -> VersionRestore:
    return VersionRestore(filing.deps, filing.versions, filing.files)


async def test_a_whole_version_comes_back_and_a_restore_of_what_was_undoes_it(
    filing: Filing,
) -> None:
    """Files, links, folders and permissions; also where a file became a folder, and a folder a
    file."""
    sandbox, native = await filing.boot()
    await native.commands.run(
        f"cd {HOME} && mkdir -p src/deep was-folder && echo 1 > src/app.py && echo x > src/deep/x"
        " && echo y > was-folder/y && echo z > was-file && ln -s src/app.py link && chmod 700 src"
        " && head -c 6000000 /dev/zero | tr '\\0' a > large"
    )
    first = (await filing.files.capture(sandbox, native)).version
    before = await digest(native)
    await native.commands.run(
        f"cd {HOME} && rm -r src/deep was-folder was-file link large && echo 2 > src/app.py"
        " && mkdir was-file new && echo in > was-file/in && echo out > was-folder && echo n > new/n"
    )
    present = await digest(native)

    restoring = make_restore(filing)
    done = await restoring.restore(sandbox.owner, first, actor="ada")
    assert (done.is_inside, done.left, done.undo_version) == (True, (), first + 1)
    assert await digest(native) == before
    assert (await filing.versions.open(sandbox.owner)).manifest.tree == (
        await filing.versions.open(sandbox.owner, first)
    ).manifest.tree
    captured = await filing.files.capture(sandbox, native)
    assert (captured.version, captured.changed) == (done.version, 0)

    undone = await restoring.restore(sandbox.owner, done.undo_version, actor="ada")
    assert await digest(native) == present
    again = await restoring.restore(sandbox.owner, done.undo_version, actor="ada")
    assert (again.version, again.changed, again.removed) == (undone.version, 0, 0)


async def test_one_file_or_folder_is_restored_and_the_rest_stays(filing: Filing) -> None:
    sandbox, native = await filing.boot()
    run = native.commands.run
    await run(f"cd {HOME} && mkdir a && echo 1 > a/one && echo 1 > a/two && echo 1 > b")
    first = (await filing.files.capture(sandbox, native)).version
    await run(f"cd {HOME} && echo 2 > a/one && rm a/two && echo 2 > b && echo 2 > a/three")
    restoring = make_restore(filing)
    await restoring.restore(sandbox.owner, first, "a/one", actor="ada")
    assert (await run(f"cd {HOME} && cat a/one b && ls a")).stdout == "1\n2\none\nthree\n"
    await restoring.restore(sandbox.owner, first, "a", actor="ada")
    assert (await run(f"cd {HOME} && cat b && ls a")).stdout == "2\none\ntwo\n"
    await run(f"cd {HOME} && rm -r a && echo file > a")
    for path, error in (("a/one", InvalidRequestError), ("nowhere", SavedFileNotFoundError)):
        with pytest.raises(error):
            await restoring.restore(sandbox.owner, first, path, actor="ada")
    assert (await run(f"cat {HOME}/a")).stdout == "file\n"


async def test_what_is_inside_and_not_saved_is_left_alone_and_named(filing: Filing) -> None:
    sandbox, native = await filing.boot()
    run = native.commands.run
    await run(f"cd {HOME} && echo kept > notes && echo kept > plain")
    first = (await filing.files.capture(sandbox, native)).version
    await run(f"cd {HOME} && echo notes > .sandkeeperignore && echo unsaved > notes && rm plain")
    done = await make_restore(filing).restore(sandbox.owner, first, actor="ada")
    assert [one.path for one in done.left] == ["notes"]
    assert (await run(f"cd {HOME} && cat notes plain")).stdout == "unsaved\nkept\n"
    assert (await filing.versions.open(sandbox.owner)).manifest.find("notes") is None


async def test_the_disk_of_a_paused_sandbox_is_not_overwritten_and_an_ended_one_has_none(
    filing: Filing,
) -> None:
    sandbox, native = await filing.boot()
    await native.commands.run(f"cd {HOME} && echo 1 > a && echo 1 > b")
    first = (await filing.files.capture(sandbox, native)).version
    await native.commands.run(f"cd {HOME} && echo 2 > a && rm b && echo 2 > c")
    await filing.files.capture(sandbox, native)
    restoring = make_restore(filing)
    held = await filing.save(sandbox.evolve(state=State.PAUSED))
    with pytest.raises(WrongStateError):
        await restoring.restore(sandbox.owner, first, actor="ada")
    await native.kill()
    await filing.save(held.evolve(state=State.KILLED))
    done = await restoring.restore(sandbox.owner, first, actor="ada")
    assert (done.is_inside, done.changed, done.removed) == (False, 2, 1)
    again, native = await filing.boot(sandbox)
    await filing.files.restore(again, native)
    shown = await native.commands.run(f"cd {HOME} && cat a b && ls")
    assert shown.stdout == "1\n1\na\nb\n"
