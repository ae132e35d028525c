"""`sandkeeper version`."""

from __future__ import annotations

from importlib.metadata import version as version_of

import typer


def version() -> None:
    """Print the version."""
    typer.echo(version_of("sandkeeper"))
