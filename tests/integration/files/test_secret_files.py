"""Files that may hold secrets leave a real sandbox only when its policy says so."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
from e2b import AsyncSandbox

from sandkeeper.domain.errors import InvalidRequestError
from sandkeeper.domain.files.manifest import NotKept
from sandkeeper.domain.sandbox import Sandbox
from sandkeeper.services.files.file_api import FileApi
from support.file_fixtures import HOME, Filing

SECRETS = (".env", ".ssh/deep/known_hosts", ".ssh/id_rsa", "tls/server.pem")


async def fill(native: AsyncSandbox) -> None:
    await native.commands.run(
        f"""cd {HOME} && mkdir -p .ssh/deep tls && echo 1 > app.py && echo A=1 > .env.example &&
        for name in {" ".join(SECRETS)}; do echo secret > $name; done"""
    )


async def list_inside(native: AsyncSandbox) -> list[str]:
    found = await native.commands.run(f"cd {HOME} && find . -type f -printf '%P\\n' | sort")
    return found.stdout.splitlines()


async def list_kept(filing: Filing, sandbox: Sandbox) -> set[str]:
    return set((await filing.versions.open(sandbox.owner)).manifest.entries)


async def set_policy(filing: Filing, sandbox: Sandbox, *, keeps: bool | None) -> Sandbox:
    policy = replace(sandbox.policy, keep_secret_files=keeps)
    return await filing.save(sandbox.evolve(policy=policy))


async def test_secrets_are_neither_kept_nor_removed_and_the_restore_names_them(
    filing: Filing,
) -> None:
    sandbox, native = await filing.boot()
    await fill(native)
    captured = await filing.files.capture(sandbox, native)
    assert captured.not_kept == NotKept(SECRETS, len(SECRETS))
    assert await list_kept(filing, sandbox) == {".env.example", "app.py", "tls"}
    assert set(SECRETS) < set(await list_inside(native))
    verified = await filing.files.verify(sandbox, native, everything=True)
    assert (verified.is_whole, verified.newer) == (True, ())
    await native.kill()

    again, native = await filing.boot(sandbox)
    restored = await filing.files.restore(again, native)
    assert restored.not_kept == captured.not_kept
    assert await list_inside(native) == [".env.example", "app.py"]
    assert (await filing.files.capture(again, native)).not_kept.count == 0
    assert (await filing.files.restore(again, native)).not_kept.count == 0


@pytest.mark.parametrize("way", ["policy", "setting", "rule"])
async def test_secrets_are_kept_when_the_policy_the_setting_or_a_rule_says_so(
    filing: Filing, way: str
) -> None:
    keeping = Filing.over(
        filing.store, filing.provider, filing.folder, keep_secret_files=way == "setting"
    )
    sandbox, native = await keeping.boot()
    await fill(native)
    if way == "policy":
        sandbox = await set_policy(keeping, sandbox, keeps=True)
    if way == "rule":
        rules = "!.env\n!.ssh/\n!id_rsa\n!*.pem\n"
        await native.files.write(f"{HOME}/.sandkeeperignore", rules)
    before = await list_inside(native)
    assert (await keeping.files.capture(sandbox, native)).not_kept.count == 0
    await native.kill()
    again, native = await keeping.boot(sandbox)
    assert (await keeping.files.restore(again, native)).lost == ()
    assert await list_inside(native) == before


async def test_a_version_with_secrets_is_restored_as_it_is_and_overwrites_nothing_newer(
    filing: Filing,
) -> None:
    """As after an upgrade, or when the policy changed: the version in force still has them."""
    sandbox, native = await filing.boot()
    await fill(native)
    sandbox = await set_policy(filing, sandbox, keeps=True)
    await filing.files.capture(sandbox, native)
    sandbox = await set_policy(filing, sandbox, keeps=False)
    await native.commands.run(f"sleep 0.05; echo newer > {HOME}/.env")
    verified = await filing.files.verify(sandbox, native, everything=False)
    assert (verified.is_whole, verified.newer) == (True, (".env",))
    await native.kill()

    again, native = await filing.boot(sandbox)
    assert (await filing.files.restore(again, native)).lost == ()
    assert set(SECRETS) < set(await list_inside(native))
    captured = await filing.files.capture(again, native)
    assert (captured.version, captured.not_kept.count) == (2, len(SECRETS))
    assert not await list_kept(filing, again) & set(SECRETS)
    earlier = await filing.versions.open(again.owner, 1)
    assert set(SECRETS) < set(earlier.manifest.entries)


async def test_an_edit_through_the_api_follows_the_policy_and_keeps_the_note(
    filing: Filing,
) -> None:
    async def read() -> AsyncIterator[bytes]:
        yield b"A=1"

    sandbox, native = await filing.boot()
    await fill(native)
    await filing.files.capture(sandbox, native)
    api = FileApi(filing.deps, filing.versions, filing.files)
    with pytest.raises(InvalidRequestError, match="keepSecretFiles"):
        await api.put(sandbox.owner, "api/.env", read())
    await api.put(sandbox.owner, "notes.txt", read())
    assert (await filing.versions.open(sandbox.owner)).manifest.not_kept.paths == SECRETS
    sandbox = await set_policy(filing, sandbox, keeps=True)
    await api.put(sandbox.owner, "api/.env", read())
    assert "api/.env" in await list_kept(filing, sandbox)


@pytest.mark.skipif(os.geteuid() != 0, reason="the host's programs are root's to take away")
async def test_a_sandbox_without_python_leaves_out_the_same(filing: Filing) -> None:
    sandbox, native = await filing.boot()
    await native.commands.run("rm -f /usr/bin/python3 /usr/local/bin/python3", user="root")
    await fill(native)
    captured = await filing.files.capture(sandbox, native)
    assert captured.not_kept == NotKept(SECRETS, len(SECRETS))
    assert await list_kept(filing, sandbox) == {".env.example", "app.py", "tls"}
