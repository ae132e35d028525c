"""`sandkeeper doctor`: what this machine offers to sandboxes, and how a running keeper does."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sandkeeper.engine.runtime.contract import Capability

FINDINGS_EXIT = 8
"""What `interfaces` calls findings: the command worked, and something is to be mended."""


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON lines.")] = False,
    url: Annotated[
        str | None, typer.Option(envvar="SANDKEEPER_URL", help="Where the keeper answers.")
    ] = None,
) -> None:
    """Say what this machine offers, how the keeper does if one runs, and how to mend both."""
    from sandkeeper.engine.runtime.bubblewrap.runtime import BubblewrapRuntime  # noqa: PLC0415
    from sandkeeper.engine.templates import desktop  # noqa: PLC0415

    with tempfile.TemporaryDirectory() as folder:
        findings = [*BubblewrapRuntime(Path(folder)).capabilities(), desktop.check_desktop()]
    findings += _ask_keeper(url)
    for one in findings:
        if as_json:
            fields = {"name": one.name, "ok": one.ok, "finding": one.finding, "fix": one.fix}
            typer.echo(json.dumps(fields))
            continue
        typer.echo(f"{'ok  ' if one.ok else 'MISS'}  {one.name}: {one.finding}")
        if one.fix and not one.ok:
            typer.echo(f"      to mend it: {one.fix}")
    if not all(one.ok for one in findings):
        raise typer.Exit(FINDINGS_EXIT)


def _ask_keeper(url: str | None) -> Iterator[Capability]:
    """The readings of the keeper's health; none where no keeper answers."""
    from sandkeeper.cli.connection import KeeperConnection  # noqa: PLC0415
    from sandkeeper.engine.runtime.contract import Capability  # noqa: PLC0415

    keeper = KeeperConnection(url)
    if not keeper.is_up():
        return
    answer = keeper.send("GET", "/api/fleet/health")
    if not answer.is_success:
        finding = f"{keeper.url} refuses this key: HTTP {answer.status_code}"
        fix = "set SANDKEEPER_DATA to that keeper's folder, or SANDKEEPER_OPERATOR_KEY"
        yield Capability("keeper", ok=False, finding=finding, fix=fix)
        return
    for one in answer.json()["items"]:
        value = "nothing measured yet" if one["value"] is None else f"{one['value']:.3g}"
        finding = f"{value} (limit {one['limit']:g} {one['unit']})"
        yield Capability(f"keeper: {one['name']}", one["ok"], finding, one["sentence"])
