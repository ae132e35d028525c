"""`sandkeeper config`: the current settings and their sources."""

from __future__ import annotations

import os
import tomllib

import typer
from pydantic import SecretStr

from sandkeeper.cli.connection import JsonOption
from sandkeeper.cli.output import print_json, print_table
from sandkeeper.common.user_folders import find_settings_files, user_settings_file
from sandkeeper.session_variables import SessionVariables
from sandkeeper.settings import Settings, read_settings

app = typer.Typer(add_completion=False, no_args_is_help=True, help="Settings.")


@app.callback()
def config() -> None:
    """Show the settings, highest precedence first: flag, environment, local file, user file."""


@app.command("show")
def show(as_json: JsonOption = False) -> None:
    """Show every setting with its value and source. Secrets are never shown."""
    settings = read_settings()
    rows = [
        {
            "name": name,
            "value": _plain(getattr(settings, name)),
            "source": _source(name),
            "variable": f"SANDKEEPER_{name.upper()}",
            "meaning": field.description or "",
        }
        for name, field in Settings.model_fields.items()
    ]
    if as_json:
        print_json(rows)
        return
    columns = ("name", "value", "source", "meaning")
    print_table(columns, ([row[column] for column in columns] for row in rows))


def _plain(value: object) -> object:
    if isinstance(value, SecretStr):
        return "set, not shown"
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value if isinstance(value, bool | int | float | str) or value is None else str(value)


def _source(name: str) -> str:
    if f"SANDKEEPER_{name.upper()}" in os.environ or name in SessionVariables(Settings)():
        return "environment"
    for path in find_settings_files():
        if name in tomllib.loads(path.read_text()):
            return "user file" if path == user_settings_file() else "./sandkeeper.toml"
    return "default"
