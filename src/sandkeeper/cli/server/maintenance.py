"""`sandkeeper sweep`, `reconcile` and `leaks`: run background tasks now and show their findings."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from sandkeeper.cli.connection import Exit, JsonOption, KeeperConnection, UrlOption, fail
from sandkeeper.cli.output import print_json, print_lines, print_table
from sandkeeper.domain.errors import SandkeeperError
from sandkeeper.domain.tasks import TaskName
from sandkeeper.hosting.asgi_server import run as run_loop
from sandkeeper.settings import read_settings
from sandkeeper.telemetry import configure_logging


def sweep(
    once: Annotated[
        bool, typer.Option("--once/--no-once", help="Run one sweep; the only mode.")
    ] = True,
    as_json: JsonOption = False,
    url: UrlOption = None,
) -> None:
    """Pause idle sandboxes now; for use with cron.

    A running keeper does the sweep. If none is running, this command opens the database itself.
    """
    if not once:
        raise fail(Exit.USAGE, "The continuous sweep is part of `sandkeeper serve`.")
    connection = KeeperConnection(url)
    if url is not None or connection.is_up():
        report = connection.post(f"/api/tasks/{TaskName.IDLE_SWEEP}/run")
    else:
        report = _sweep_here()
    if as_json:
        print_json(report)
    else:
        counts = " ".join(f"{name}={count}" for name, count in report["detail"].items())
        print_lines([f"{report['task']}\t{counts}"])
    if not report["ok"]:
        raise fail(Exit.FAILURE, f"The sweep failed: {report['error']}")
    if report["detail"].get("failed"):
        raise typer.Exit(int(Exit.PARTIAL))


def reconcile(
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Report differences without changing records.")
    ] = False,
    as_json: JsonOption = False,
    url: UrlOption = None,
) -> None:
    """Compare all records with the provider's sandboxes and correct the records."""
    report = KeeperConnection(url).post("/api/fleet/reconcile", {"dryRun": dry_run})
    if as_json:
        print_json(report)
    else:
        print_lines(
            f"{one['kind']}\t{one['instanceId']}\t{one['ours']} → {one['theirs']}"
            for one in report["corrections"]
        )
    if dry_run and report["corrections"]:
        raise typer.Exit(int(Exit.FINDINGS))


def leaks(as_json: JsonOption = False, url: UrlOption = None) -> None:
    """List sandboxes at the provider without a record, and those that were removed."""
    page = KeeperConnection(url).get("/api/fleet/leaks")
    if as_json:
        print_json(page)
        return
    columns = (
        "kind",
        "instance",
        "owner",
        "first seen",
        "seen",
        "reason",
        "paused",
        "removed",
        "by",
    )
    print_table(
        columns,
        (
            (
                one["kind"],
                one["instanceId"],
                one["owner"],
                one["firstSeenAt"],
                one["sightings"],
                one["reason"],
                one["pausedAt"],
                one["removedAt"],
                one["removedBy"],
            )
            for one in page["items"]
        ),
    )


def _sweep_here() -> dict[str, Any]:
    from sandkeeper.app import sweep_once  # noqa: PLC0415  Slow to import, rarely needed.

    settings = read_settings()
    configure_logging(settings.log_format, settings.log_level)
    try:
        run = run_loop(sweep_once(settings))
    except SandkeeperError as error:
        raise fail(Exit.FAILURE, str(error), error.hint) from None
    return {
        "task": run.task,
        "ok": run.succeeded,
        "durationS": run.duration_s,
        "error": run.error,
        "detail": dict(run.detail),
    }
