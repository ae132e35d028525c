"""The `sandkeeper` command: a table of names, each loaded only when it is asked for.

A command is a plain function with Typer's annotations, or a `typer.Typer` with commands of its own.
To add one, write it in `cli/<noun>.py` and name it in `COMMANDS`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

import typer
from typer.core import TyperGroup
from typer.main import get_command
from typing_extensions import override

if TYPE_CHECKING:
    from typer._click.core import Command, Context

COMMANDS = {
    "up": "sandkeeper.cli.up:up",
    "serve": "sandkeeper.cli.up:serve",
    "ls": "sandkeeper.cli.sandboxes:ls",
    "show": "sandkeeper.cli.sandboxes:show",
    "explain": "sandkeeper.cli.sandboxes:explain",
    "history": "sandkeeper.cli.sandboxes:history",
    "events": "sandkeeper.cli.events:events",
    "create": "sandkeeper.cli.sandboxes:create",
    "wake": "sandkeeper.cli.wake:wake",
    "warm": "sandkeeper.cli.wake:warm",
    "pause": "sandkeeper.cli.sandboxes:pause",
    "kill": "sandkeeper.cli.sandboxes:kill",
    "extend": "sandkeeper.cli.sandboxes:extend",
    "touch": "sandkeeper.cli.sandboxes:touch",
    "verify": "sandkeeper.cli.sandboxes:verify",
    "open": "sandkeeper.cli.sandboxes:open_page",
    "log": "sandkeeper.cli.wake:log",
    "snapshot": "sandkeeper.cli.job:snapshot",
    "resume": "sandkeeper.cli.job:resume",
    "exec": "sandkeeper.cli.exec:execute",
    "session": "sandkeeper.cli.session:app",
    "pool": "sandkeeper.cli.pool:app",
    "mcp": "sandkeeper.cli.mcp:mcp",
    "files": "sandkeeper.cli.files:app",
    "sweep": "sandkeeper.cli.maintenance:sweep",
    "reconcile": "sandkeeper.cli.maintenance:reconcile",
    "leaks": "sandkeeper.cli.maintenance:leaks",
    "webhook": "sandkeeper.cli.webhook:app",
    "db": "sandkeeper.cli.db:app",
    "config": "sandkeeper.cli.config:app",
    "token": "sandkeeper.cli.token:app",
    "login": "sandkeeper.cli.token:logins",
    "openapi": "sandkeeper.cli.openapi:openapi",
    "engine": "sandkeeper.cli.engine:app",
    "doctor": "sandkeeper.cli.doctor:doctor",
    "version": "sandkeeper.cli.version:version",
}
"""Name → module:attribute. The order is the order of `--help`."""


class LazyCommands(TyperGroup):
    """Imports a command's module when the command is run or listed, not before.

    The web server, the database and the SDK take a good part of a second to import; `sandkeeper
    version` needs none of them.
    """

    @override
    def list_commands(self, ctx: Context) -> list[str]:
        return list(COMMANDS)

    @override
    def get_command(self, ctx: Context, cmd_name: str) -> Command | None:
        target = COMMANDS.get(cmd_name)
        if target is None:
            return None
        module, _, attribute = target.partition(":")
        found = getattr(import_module(module), attribute)
        if not isinstance(found, typer.Typer):
            single = typer.Typer(add_completion=False)
            single.command(cmd_name)(found)
            found = single
        command = get_command(found)
        command.name = cmd_name
        return command


app = typer.Typer(
    cls=LazyCommands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Knows every E2B sandbox's true state, puts the idle to sleep, brings the needed back.",
)


@app.callback()
def sandkeeper() -> None:
    """Hold the options that every command shares; there are none yet."""


def main() -> None:
    """Run the command line."""
    app()


if __name__ == "__main__":
    main()
