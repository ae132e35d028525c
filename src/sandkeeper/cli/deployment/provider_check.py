"""`sandkeeper doctor --provider`: what the configured providers offer."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

import typer

from sandkeeper.domain.errors import SandkeeperError
from sandkeeper.providers.base import Provider
from sandkeeper.providers.conformance import FeatureFinding, check_provider
from sandkeeper.providers.factory import make_providers, read_connections
from sandkeeper.providers.features import INSTEAD, NEEDED
from sandkeeper.services.monitoring.provider_features import remember_findings
from sandkeeper.settings import Settings, read_settings
from sandkeeper.store import open_store
from sandkeeper.telemetry import Metrics

COST: Final = (
    "This creates one sandbox of the template {template} at each provider ({regions}) and ends it "
    "after about a minute. It costs what a minute of that template costs (E2B's smallest: far less "
    "than a cent)."
)


def check_providers(template: str, *, as_json: bool, ask: bool) -> bool:
    """Check every configured provider; return whether all have what is needed."""
    settings = read_settings()
    connections = read_connections(settings)
    typer.echo(COST.format(template=template, regions=", ".join(connections)), err=True)
    if ask:
        typer.confirm("Go on?", abort=True, err=True)
    return asyncio.run(_check(settings, template, as_json=as_json))


async def _check(settings: Settings, template: str, *, as_json: bool) -> bool:
    providers = make_providers(
        settings,
        read_connections(settings),
        metrics=Metrics(),
        clock=lambda: datetime.now(UTC),
        keeper_id=f"doctor-{secrets.token_hex(6)}",
    )
    is_fine = True
    for provider in providers:
        findings: list[FeatureFinding] = []
        try:
            async for finding in check_provider(provider, template=template):
                findings.append(finding)
                _print(provider, finding, as_json=as_json)
        finally:
            await provider.close()
        is_fine &= all(one.is_supported for one in findings if one.feature in NEEDED)
        await _remember(settings, provider, findings)
    return is_fine


def _print(provider: Provider, finding: FeatureFinding, *, as_json: bool) -> None:
    instead = "" if finding.is_supported else INSTEAD.get(finding.feature, "")
    if as_json:
        fields = {
            "region": provider.region,
            "feature": finding.feature.value,
            "supported": finding.is_supported,
            "detail": finding.detail,
            "instead": instead,
            "tookS": round(finding.took_s, 3),
        }
        typer.echo(json.dumps(fields))
        return
    word = {True: "ok  ", False: "MISS", None: "??  "}[finding.is_supported]
    detail = f"  {finding.detail}" if finding.detail else ""
    typer.echo(f"{word}  {finding.feature.value:<10}{finding.took_s:7.2f} s{detail}")
    if instead:
        typer.echo(f"      so {instead}")
    elif not finding.is_supported and finding.feature in NEEDED:
        typer.echo("      Sandkeeper needs it: this provider cannot be used")


async def _remember(
    settings: Settings, provider: Provider, findings: Sequence[FeatureFinding]
) -> None:
    """Store the findings in the keeper's database, if it has one."""
    if not any(one.is_supported for one in findings):
        typer.echo("Nothing is remembered: the provider could not be tried.", err=True)
        return
    if not settings.database and not (settings.data / "sandkeeper.db").exists():
        typer.echo("Nothing is remembered: there is no database yet.", err=True)
        return
    try:
        async with open_store(settings.database_url, migrate=False) as store:
            await remember_findings(store, provider, findings, now=datetime.now(UTC))
    except SandkeeperError as error:
        typer.echo(f"Nothing is remembered: {error.message}", err=True)
        return
    typer.echo(f"Remembered for the region {provider.region}.", err=True)
