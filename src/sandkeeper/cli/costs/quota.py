"""`sandkeeper quota`: what tenants may have."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from sandkeeper.cli.connection import JsonOption, KeeperConnection, QuietOption, UrlOption
from sandkeeper.cli.output import print_items, print_json, print_table

app = typer.Typer(add_completion=False, no_args_is_help=True, help="Quotas of tenants.")

KEYS = ("running", "kept", "creationsHour", "creationsDay", "runningHoursMonth", "keptBytes")
COLUMNS = (
    "tenant",
    "running",
    "kept",
    "created this hour",
    "created today",
    "hours this month",
    "bytes kept",
)
LimitOption = Annotated[int | None, typer.Option(min=0)]


@app.command("ls")
def list_quotas(
    as_json: JsonOption = False, quiet: QuietOption = False, url: UrlOption = None
) -> None:
    """List the quotas as used/limit. Hours, days and months are those of UTC."""
    items = KeeperConnection(url).get("/api/quotas")["items"]
    print_items(items, columns=COLUMNS, row=_row, id_field="tenant", as_json=as_json, quiet=quiet)


@app.command("set")
def set_quota(
    tenant: Annotated[str, typer.Argument(help="The tenant; `*` is each one without its own.")],
    *,
    running: LimitOption = None,
    kept: LimitOption = None,
    creations_hour: LimitOption = None,
    creations_day: LimitOption = None,
    running_hours_month: LimitOption = None,
    kept_bytes: LimitOption = None,
    as_json: JsonOption = False,
    url: UrlOption = None,
) -> None:
    """Set a tenant's quota. What is not given is not limited; without any limit it has none."""
    given = (running, kept, creations_hour, creations_day, running_hours_month, kept_bytes)
    body = {"tenant": tenant, **dict(zip(KEYS, given, strict=True))}
    quota = KeeperConnection(url).request("PUT", "/api/quotas", body=body)
    if as_json:
        print_json(quota)
    else:
        print_table(COLUMNS, [_row(quota)])


def _row(item: dict[str, Any]) -> tuple[object, ...]:
    return (item["tenant"], *(_word(item[key]) for key in KEYS))


def _word(part: dict[str, Any]) -> str:
    if part["limit"] is None:
        return "-"
    return f"{'-' if part['used'] is None else format(part['used'], 'g')}/{part['limit']}"
