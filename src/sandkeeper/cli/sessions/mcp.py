"""`sandkeeper mcp`: a sandbox as tools for agents (Model Context Protocol)."""

from __future__ import annotations

import asyncio
import getpass
import secrets
from typing import Annotated

import typer

from sandkeeper.cli.connection import Exit, UrlOption, fail


def mcp(
    user: Annotated[
        str | None, typer.Option(help="User who owns the sandbox. [default: your login name]")
    ] = None,
    task: Annotated[
        str | None,
        typer.Option(
            help="Conversation; the same one gets its sandbox and files again. [default: new]"
        ),
    ] = None,
    url: UrlOption = None,
) -> None:
    """Serve a sandbox as MCP tools on standard input and output."""
    try:
        from sandkeeper.integrations.mcp import serve  # noqa: PLC0415  An optional extra.
    except ModuleNotFoundError as error:
        raise fail(
            Exit.USAGE, f"{error.name} is not installed.", "Install `sandkeeper[mcp]`."
        ) from None
    user_id, task_id = user or getpass.getuser(), task or f"mcp-{secrets.token_hex(4)}"
    asyncio.run(serve(url=url, user_id=user_id, task_id=task_id))
