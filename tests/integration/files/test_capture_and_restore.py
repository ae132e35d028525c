"""Files go out of a real sandbox and come back into another one, and none is lost."""

from __future__ import annotations

import asyncio
import hashlib
from datetime import timedelta

import pytest
from e2b import AsyncSandbox

from sandkeeper.domain.errors import (
    CaptureUnsupportedError,
    FilesUnavailableError,
    SandkeeperError,
)
from sandkeeper.domain.files.manifest import Kind
from sandkeeper.domain.sandbox import Claim, ClaimKind
from sandkeeper.providers.acting_claim import acting_for
from sandkeeper.services.files import capture
from support.file_fixtures import HOME, Filing, digest, now


async def fill(native: AsyncSandbox) -> None:
    """Everything that is easy to lose."""
    await native.commands.run(
        f"""
        cd {HOME}
        mkdir -p src/deep/er empty node_modules/left .git/objects 'ünïcode/日本語'
        echo hello > src/index.html; : > nothing; printf 'a\\0b' > src/deep/er/bin
        echo '#!/bin/sh' > run.sh; chmod 750 run.sh
        ln -s src/index.html link; ln -s /usr/bin/python3 outside; ln -s nowhere broken
        echo grüße > 'ünïcode/日本語/näme mit "leer" $zeichen'
        printf x > $'new\\nline'
        echo skip > node_modules/left/pad.js; echo skip > .git/objects/aa; echo ref > .git/HEAD
        chmod 555 src/deep/er
        head -c 6000000 /dev/urandom > large.bin
        """
    )


async def test_everything_that_is_kept_comes_back_in_a_new_instance(filing: Filing) -> None:
    sandbox, native = await filing.boot()
    await fill(native)
    captured = await filing.files.capture(sandbox, native)
    assert (captured.version, captured.is_new, captured.unreadable) == (1, True, ())
    await native.commands.run(f"cd {HOME} && rm -rf node_modules .git/objects")
    before = await digest(native)
    await native.kill()

    again, native = await filing.boot(sandbox)
    restored = await filing.files.restore(again, native)
    assert (restored.version, restored.lost) == (1, ())
    assert restored.files == captured.files
    assert await digest(native) == before
    verified = await filing.files.verify(again, native, everything=True)
    assert verified.is_whole
    assert verified.newer == ()
    assert verified.hashed == sum(
        one.kind is Kind.FILE for one in (await filing.versions.open(sandbox.owner)).manifest.files
    )
    # What was put back is known by its content: nothing travels again, and no version is added.
    after = await filing.files.capture(again, native)
    assert (after.version, after.is_new, after.travelled_bytes) == (1, False, 0)


async def test_thousands_of_small_files_and_a_very_large_one_survive(filing: Filing) -> None:
    """The same with 50 000 files and with 1 GiB is part of `make bench`."""
    roomy = Filing.over(filing.store, filing.provider, filing.folder, files_file_bytes_max=2**28)
    sandbox, native = await roomy.boot()
    await native.commands.run(
        f"""cd {HOME} && head -c 9000000 /dev/urandom > large && truncate -s 128M large &&
        for d in $(seq 50); do mkdir $d; for f in $(seq 100); do echo $d.$f > $d/$f; done; done""",
        timeout=60,
    )
    captured = await roomy.files.capture(sandbox, native)
    assert (captured.files, captured.unreadable) == (5001, ())
    assert captured.travelled_bytes < 12 * 2**20, "zeros do not travel"
    before = await digest(native)
    await native.kill()
    again, native = await roomy.boot(sandbox)
    restored = await roomy.files.restore(again, native)
    assert (restored.files, restored.lost, restored.is_proven) == (5001, (), True)
    assert await digest(native) == before
    blocks = (await native.commands.run(f"stat -c %b {HOME}/large")).stdout
    assert int(blocks) * 512 < 12 * 2**20, "zeros are a hole again"
    large = (await roomy.versions.open(sandbox.owner)).manifest.entries["large"]
    content = hashlib.sha256()
    async for piece in roomy.versions.stream(large):
        content.update(piece)
    assert content.hexdigest() == large.sha256, "a download has the zeros"


async def test_only_what_changed_travels_and_what_was_deleted_goes(filing: Filing) -> None:
    sandbox, native = await filing.boot()
    await native.commands.run(
        f"cd {HOME} && for i in $(seq 300); do echo $i > f$i; done && sleep 0.2"
    )
    first = await filing.files.capture(sandbox, native)
    assert (first.files, first.changed) == (300, 300)
    nothing = await filing.files.capture(sandbox, native)
    assert (nothing.version, nothing.changed, nothing.travelled_bytes) == (1, 0, 0)
    await native.commands.run(f"cd {HOME} && echo other > f7 && rm f8 && chmod +x f9 && mv f10 g10")
    second = await filing.files.capture(sandbox, native)
    assert (second.version, second.changed, second.removed) == (2, 3, 2)
    assert second.travelled_bytes <= len("other\n") + len("10\n")
    kept = (await filing.versions.open(sandbox.owner)).manifest
    assert kept.entries["f9"].mode & 0o111
    assert "f8" not in kept.entries
    earlier = await filing.versions.open(sandbox.owner, 1)
    assert earlier.manifest.find("f8") is not None


async def test_a_resume_that_lost_files_is_detected_and_repaired(filing: Filing) -> None:
    """As E2B's issue 884 has it, and as a resume of an older generation would look."""
    sandbox, native = await filing.boot()
    await native.commands.run(
        f"cd {HOME} && echo one > a && echo two > b && echo three > c && echo four > d"
    )
    await filing.files.capture(sandbox, native)
    await native.commands.run(
        f"cd {HOME} && rm a && echo old > b && touch -d '2020-01-01' b"
        " && sleep 0.05 && echo newer > c"
        " && touch -r d keep && echo FOUR > d && touch -r keep d && rm keep"
    )
    found = await filing.files.verify(sandbox, native, everything=False)
    assert (found.missing, found.older, found.newer) == (("a",), ("b",), ("c",))
    assert found.damaged == ("d",)
    restored = await filing.files.restore(sandbox, native, paths=found.lost)
    assert (restored.files, restored.lost) == (3, ())
    said = await native.commands.run(f"cd {HOME} && cat a b c d")
    assert said.stdout == "one\ntwo\nnewer\nfour\n"
    assert (await filing.files.verify(sandbox, native, everything=False)).is_whole


async def test_a_run_that_no_wake_began_is_repaired_before_it_is_captured(filing: Filing) -> None:
    """An empty disk is no deletion: a new instance without its files gets them first."""
    sandbox, native = await filing.boot()
    await native.commands.run(f"cd {HOME} && echo one > a && echo two > b")
    await filing.files.capture(sandbox, native)
    await native.kill()
    again, native = await filing.boot(sandbox.evolve(generation=2))
    again = await filing.save(again.evolve(run_started_at=now()))
    await native.commands.run(f"cd {HOME} && echo three > c")
    captured = await filing.files.capture(again, native)
    assert (captured.version, captured.files, captured.removed) == (2, 3, 0)
    assert (await native.commands.run(f"cat {HOME}/*")).stdout == "one\ntwo\nthree\n"
    # From now on a deletion is one.
    await native.commands.run(f"rm {HOME}/a")
    assert (await filing.files.capture(again, native)).removed == 1


async def test_above_the_limit_the_rest_is_compared_by_size_and_time(filing: Filing) -> None:
    sandbox, native = await filing.boot()
    await native.commands.run(
        f"cd {HOME} && for i in 1 2 3 4; do head -c 1000 /dev/zero > $i; done"
    )
    await filing.files.capture(sandbox, native)
    few = Filing.over(filing.store, filing.provider, filing.folder, files_hash_bytes_max=2500)
    verified = await few.files.verify(sandbox, native, everything=False)
    assert (verified.checked, verified.hashed, verified.is_whole) == (4, 2, True)
    whole = await few.files.verify(sandbox, native, everything=True)
    assert whole.hashed == 4


async def test_what_cannot_be_read_is_named_and_its_last_state_is_kept(filing: Filing) -> None:
    sandbox, native = await filing.boot()
    await native.commands.run(f"cd {HOME} && mkdir shut && echo 1 > shut/in && echo 2 > secret")
    await filing.files.capture(sandbox, native)
    await native.commands.run(
        f"cd {HOME} && chmod 000 secret shut"
        " && head -c 3000000 /dev/zero > huge && echo fine > fine"
    )
    small = Filing.over(
        filing.store, filing.provider, filing.folder, files_file_bytes_max=2_000_000
    )
    captured = await small.files.capture(sandbox, native)
    assert {one.path for one in captured.unreadable} == {"secret", "shut", "huge"}
    assert captured.unreadable_count == 3
    told = (await filing.store.events.of(sandbox.id))[0]
    assert (told.type, told.data["files_version"]) == ("sandbox.files_captured", 2)
    assert set(told.data["unreadable"]) == {"secret", "shut", "huge"}
    kept = (await filing.versions.open(sandbox.owner)).manifest
    assert {"fine", "shut/in", "secret"} <= set(kept.entries)
    assert "huge" not in kept.entries


async def test_own_rules_add_to_ours_and_take_them_back(filing: Filing) -> None:
    sandbox, native = await filing.boot()
    await native.commands.run(
        f"cd {HOME} && mkdir -p node_modules build/keep venv && echo 1 > node_modules/a"
        " && echo 2 > build/out && echo 3 > app.log && echo 4 > venv/b && echo 5 > c"
        " && printf '# mine\\n*.log\\n/build/\\n!node_modules/\\n' > .sandkeeperignore"
    )
    await filing.files.capture(sandbox, native)
    kept = (await filing.versions.open(sandbox.owner)).manifest
    files = {one.path for one in kept.files if one.kind is Kind.FILE}
    assert files == {".sandkeeperignore", "c", "node_modules/a"}


async def test_a_capture_that_fails_half_way_leaves_the_last_version(
    filing: Filing, monkeypatch: pytest.MonkeyPatch
) -> None:
    sandbox, native = await filing.boot()
    await native.commands.run(f"cd {HOME} && echo 1 > a")
    await filing.files.capture(sandbox, native)
    await native.commands.run(f"cd {HOME} && echo 2 > a")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "unknown")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "nothing")
    down = Filing.over(filing.store, filing.provider, filing.folder, url="s3://bucket/files")
    with pytest.raises(FilesUnavailableError):
        await down.files.capture(sandbox, native)
    await native.commands.run(f"cd {HOME} && echo 3 > b")
    bounded = Filing.over(filing.store, filing.provider, filing.folder, files_count_max=1)
    with pytest.raises(CaptureUnsupportedError):
        await bounded.files.capture(sandbox, native)
    version = await filing.versions.open(sandbox.owner)
    assert version.number == 1
    assert await filing.versions.read([version.manifest.entries["a"]])
    assert (await filing.files.capture(sandbox, native)).version == 2


async def test_a_capture_of_an_instance_that_is_gone_says_so(filing: Filing) -> None:
    sandbox, native = await filing.boot()
    await native.kill()
    with pytest.raises(SandkeeperError) as caught:
        await filing.files.capture(sandbox)
    assert caught.value.code == "instance_gone"


async def test_a_large_file_that_was_damaged_is_named_and_the_others_come_back(
    filing: Filing,
) -> None:
    sandbox, native = await filing.boot()
    await native.commands.run(
        f"cd {HOME} && for n in bad good; do head -c 6000000 /dev/urandom > $n; done"
    )
    await filing.files.capture(sandbox, native)
    await native.kill()
    pack = (await filing.versions.open(sandbox.owner)).manifest.entries["bad"].pack
    [path] = filing.folder.rglob(f"{pack}*")
    damaged = bytearray(path.read_bytes())
    damaged[5_000_000] ^= 1
    path.write_bytes(damaged)
    again, native = await filing.boot(sandbox)
    restored = await filing.files.restore(again, native)
    assert [one.path for one in restored.lost] == ["bad"]
    assert (await native.commands.run(f"ls -A {HOME}")).stdout.split() == ["good"]


async def test_a_capture_by_the_holder_of_a_claim_does_not_wait_for_one_that_waits_for_the_claim(
    filing: Filing, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The comparison after a resume waits for a pause, and the pause captures first."""
    monkeypatch.setattr(capture, "FREE_WAIT_S", 3600.0)
    sandbox, native = await filing.boot()
    await native.commands.run(f"echo kept > {HOME}/kept")
    claim = Claim(ClaimKind.PAUSE, holder="pause", until=now() + timedelta(hours=1))
    held = await filing.save(sandbox.evolve(claim=claim))
    comparing = asyncio.create_task(filing.files.check_new_run(held))
    await asyncio.sleep(0)
    try:
        with acting_for(3600):
            async with asyncio.timeout(120):
                captured = await filing.files.capture(held, native)
        assert captured.version == 1
        assert not comparing.done()
    finally:
        comparing.cancel()
        await asyncio.gather(comparing, return_exceptions=True)
