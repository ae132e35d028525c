"""`sandkeeper engine`: the local engine, and how to point the SDKs at it."""

from __future__ import annotations

import typer

app = typer.Typer(add_completion=False, help="Run E2B's API on this machine.")
