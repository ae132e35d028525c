"""`sandkeeper doctor`: check this machine and a running keeper."""

from __future__ import annotations

import asyncio
import json
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sandkeeper.engine.runtime.contract import Capability

FINDINGS_EXIT = 8
"""The exit code for findings: the command worked and found something to fix."""


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON lines.")] = False,
    url: Annotated[
        str | None, typer.Option(envvar="SANDKEEPER_URL", help="URL of the keeper.")
    ] = None,
    provider: Annotated[
        bool,
        typer.Option(
            "--provider",
            help="Try every feature that Sandkeeper uses at the configured provider instead, with "
            "one sandbox for about a minute, and remember what is missing.",
        ),
    ] = False,
    template: Annotated[
        str, typer.Option(help="With --provider: the template of that sandbox.")
    ] = "base",
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Check this machine and a running keeper, and say how to fix problems.

    With `--url`, check the deployment from outside: TLS, health, version, clocks, webhooks and live
    streams. A keeper on another machine is checked only so.
    """
    if provider:
        from sandkeeper.cli.deployment.provider_check import check_providers  # noqa: PLC0415

        is_fine = check_providers(template, as_json=as_json, ask=not yes)
        raise typer.Exit(0 if is_fine else FINDINGS_EXIT)
    from sandkeeper.cli.deployment.outside import is_this_machine  # noqa: PLC0415

    findings: list[Capability] = []
    if url is None or is_this_machine(url):
        findings += _check_machine()
    if url is not None:
        findings += _check_outside(url)
    findings += _check_keeper(url)
    findings += _check_encryption() if url is None or is_this_machine(url) else []
    for one in findings:
        if as_json:
            fields = {"name": one.name, "ok": one.ok, "finding": one.finding, "fix": one.fix}
            typer.echo(json.dumps(fields))
            continue
        typer.echo(f"{'ok  ' if one.ok else 'MISS'}  {one.name}: {one.finding}")
        if one.fix and not one.ok:
            typer.echo(f"      to fix it: {one.fix}")
    if not all(one.ok for one in findings):
        raise typer.Exit(FINDINGS_EXIT)


def _check_machine() -> Iterator[Capability]:
    from sandkeeper.engine.names.resolution import check_names  # noqa: PLC0415
    from sandkeeper.engine.runtime.bubblewrap.runtime import BubblewrapRuntime  # noqa: PLC0415
    from sandkeeper.engine.templates import desktop  # noqa: PLC0415

    with tempfile.TemporaryDirectory() as folder:
        yield from BubblewrapRuntime(Path(folder)).capabilities()
    yield desktop.check_desktop()
    yield check_names()


def _check_outside(url: str) -> Iterator[Capability]:
    from sandkeeper.cli.connection import Exit, fail  # noqa: PLC0415
    from sandkeeper.cli.deployment.outside import check_outside  # noqa: PLC0415
    from sandkeeper.domain.errors import InvalidSettingsError  # noqa: PLC0415
    from sandkeeper.hosting.discovery import find_key, resolve_url  # noqa: PLC0415

    try:
        yield from check_outside(resolve_url(url), find_key(None))
    except InvalidSettingsError as error:
        raise fail(Exit.USAGE, error.message) from None


def _check_keeper(url: str | None) -> Iterator[Capability]:
    """Yield the keeper's health readings; nothing if no keeper responds."""
    from sandkeeper.cli.connection import KeeperConnection  # noqa: PLC0415
    from sandkeeper.engine.runtime.contract import Capability  # noqa: PLC0415

    keeper = KeeperConnection(url)
    if not keeper.is_up():
        return
    response = keeper.send("GET", "/api/fleet/health")
    if not response.is_success:
        finding = f"{keeper.url} refuses this key: HTTP {response.status_code}"
        fix = "set SANDKEEPER_DATA to that keeper's folder, or SANDKEEPER_OPERATOR_KEY"
        yield Capability("keeper", ok=False, finding=finding, fix=fix)
        return
    for one in response.json()["items"]:
        value = "no data yet" if one["value"] is None else f"{one['value']:.3g}"
        finding = f"{value} (limit {one['limit']:g} {one['unit']})"
        yield Capability(f"keeper: {one['name']}", one["ok"], finding, one["sentence"])


def _check_encryption() -> Iterator[Capability]:
    """Yield what is encrypted with which key; nothing where there is no database."""
    from sandkeeper.cli.server.encryption import list_keys  # noqa: PLC0415
    from sandkeeper.domain.errors import SandkeeperError  # noqa: PLC0415
    from sandkeeper.engine.runtime.contract import Capability  # noqa: PLC0415
    from sandkeeper.hosting.data_keys import open_data_keys  # noqa: PLC0415
    from sandkeeper.settings import read_settings  # noqa: PLC0415
    from sandkeeper.store import open_store  # noqa: PLC0415

    settings = read_settings()
    if not settings.database and not (settings.data / "sandkeeper.db").exists():
        return

    async def look() -> list[dict[str, Any]]:
        async with open_store(settings.database_url, migrate=False) as store:
            found = await list_keys(store, settings)
            if found:
                await open_data_keys(store, settings, now=datetime.now(UTC))
            return found

    try:
        found = asyncio.run(look())
    except SandkeeperError as error:
        yield Capability("encryption", ok=False, finding=str(error), fix=error.hint)
        return
    for one in found:
        counts = ", ".join(f"{one[kind]} {kind}" for kind in ("environments", "secrets", "packs"))
        finding = f"{counts}" + (f"; master key {one['masterKey']}" if one["masterKey"] else "")
        fix = "start the keeper: it encrypts them in the background"
        yield Capability(f"encryption: {one['dataKey']}", bool(one["masterKey"]), finding, fix)
