"""`sandkeeper doctor`: what this machine offers to sandboxes."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Annotated

import typer

FINDINGS_EXIT = 8
"""What `interfaces` calls findings: the command worked, and something is to be mended."""


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON lines.")] = False,
) -> None:
    """Say what this machine offers to sandboxes, and how to mend what is missing."""
    from sandkeeper.engine import desktop  # noqa: PLC0415
    from sandkeeper.engine.runtime.bubblewrap import BubblewrapRuntime  # noqa: PLC0415

    with tempfile.TemporaryDirectory() as folder:
        findings = [*BubblewrapRuntime(Path(folder)).capabilities(), desktop.look()]
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
