"""The `sandkeeper` command: a table of commands, each imported only when needed.

A command is a plain function with Typer's annotations, or a `typer.Typer` with commands of its own.
To add one, write it in a module of `cli/` and add it to `COMMANDS`.
"""

from __future__ import annotations

import sys
from difflib import get_close_matches
from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Annotated, Final

import typer
from typer._click.exceptions import ClickException, UsageError
from typer._click.shell_completion import CompletionItem
from typer.core import TyperGroup
from typer.main import get_command
from typing_extensions import override

if TYPE_CHECKING:
    from typer._click.core import Command, Context

COMMANDS = {
    "up": "sandkeeper.cli.server.up:up",
    "serve": "sandkeeper.cli.server.up:serve",
    "gateway": "sandkeeper.cli.server.up:gateway",
    "ls": "sandkeeper.cli.sandboxes.sandboxes:ls",
    "show": "sandkeeper.cli.sandboxes.sandboxes:show",
    "explain": "sandkeeper.cli.sandboxes.sandboxes:explain",
    "history": "sandkeeper.cli.sandboxes.sandboxes:history",
    "events": "sandkeeper.cli.sandboxes.events:events",
    "create": "sandkeeper.cli.sandboxes.sandboxes:create",
    "adopt": "sandkeeper.cli.sandboxes.adopt:adopt",
    "import": "sandkeeper.cli.sandboxes.adopt:import_fleet",
    "wake": "sandkeeper.cli.sandboxes.wake:wake",
    "warm": "sandkeeper.cli.sandboxes.wake:warm",
    "pause": "sandkeeper.cli.sandboxes.sandboxes:pause",
    "kill": "sandkeeper.cli.sandboxes.sandboxes:kill",
    "extend": "sandkeeper.cli.sandboxes.sandboxes:extend",
    "touch": "sandkeeper.cli.sandboxes.sandboxes:touch",
    "verify": "sandkeeper.cli.sandboxes.sandboxes:verify",
    "open": "sandkeeper.cli.sandboxes.sandboxes:open_page",
    "logs": "sandkeeper.cli.sandboxes.logs:logs",
    "snapshot": "sandkeeper.cli.sessions.job:snapshot",
    "resume": "sandkeeper.cli.sessions.job:resume",
    "exec": "sandkeeper.cli.sandboxes.exec:execute",
    "shell": "sandkeeper.cli.sandboxes.shell:shell",
    "cp": "sandkeeper.cli.sandboxes.copy:cp",
    "session": "sandkeeper.cli.sessions.session:app",
    "pool": "sandkeeper.cli.sessions.pool:app",
    "costs": "sandkeeper.cli.costs.costs:costs",
    "simulate": "sandkeeper.cli.costs.simulate:simulate",
    "budget": "sandkeeper.cli.costs.budget:app",
    "quota": "sandkeeper.cli.costs.quota:app",
    "mcp": "sandkeeper.cli.sessions.mcp:mcp",
    "files": "sandkeeper.cli.sandboxes.files:app",
    "checkpoint": "sandkeeper.cli.sandboxes.versions:checkpoint",
    "fork": "sandkeeper.cli.sandboxes.versions:fork",
    "sweep": "sandkeeper.cli.server.maintenance:sweep",
    "reconcile": "sandkeeper.cli.server.maintenance:reconcile",
    "leaks": "sandkeeper.cli.server.maintenance:leaks",
    "webhook": "sandkeeper.cli.server.webhook:app",
    "db": "sandkeeper.cli.server.db:app",
    "backup": "sandkeeper.cli.deployment.backup:backup",
    "restore": "sandkeeper.cli.deployment.backup:restore",
    "encryption": "sandkeeper.cli.server.encryption:app",
    "config": "sandkeeper.cli.server.config:app",
    "keys": "sandkeeper.cli.server.keys:app",
    "audit": "sandkeeper.cli.server.keys:audit",
    "token": "sandkeeper.cli.server.token:app",
    "login": "sandkeeper.cli.server.token:logins",
    "openapi": "sandkeeper.cli.server.openapi:openapi",
    "engine": "sandkeeper.cli.server.engine:app",
    "doctor": "sandkeeper.cli.server.doctor:doctor",
    "version": "sandkeeper.cli.server.version:version",
}
"""Name → module:attribute. The order is the order of `--help`."""
ALIASES: Final = {"log": "logs"}
"""Earlier names, which are not listed."""


class LazyCommands(TyperGroup):
    """Import a command's module when the command is run or listed, not before.

    The web server, the database and the SDK take a good part of a second to import; `sandkeeper
    version` needs none of them.
    """

    @override
    def list_commands(self, ctx: Context) -> list[str]:
        return list(COMMANDS)

    @override
    def get_command(self, ctx: Context, cmd_name: str) -> Command | None:
        target = COMMANDS.get(ALIASES.get(cmd_name, cmd_name))
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

    @override
    def resolve_command(
        self, ctx: Context, args: list[str]
    ) -> tuple[str | None, Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except UsageError as error:
            near = get_close_matches(args[0], COMMANDS, cutoff=0.7) if args else []
            if near:
                error.message = f"{error.message.rstrip('.')}. Did you mean {near[0]!r}?"
            raise

    @override
    def shell_complete(self, ctx: Context, incomplete: str) -> list[CompletionItem]:
        """Complete the names without an import of any command."""
        return [CompletionItem(name) for name in COMMANDS if name.startswith(incomplete)]


app = typer.Typer(
    cls=LazyCommands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Track the state of E2B sandboxes, pause idle ones and wake them on demand.",
)


def _print_version(is_asked: bool) -> None:
    if is_asked:
        sys.stdout.write(f"sandkeeper {version('sandkeeper')}\n")
        raise typer.Exit


@app.callback()
def sandkeeper(
    _version: Annotated[
        bool,
        typer.Option(
            "--version", is_eager=True, callback=_print_version, help="Print the version."
        ),
    ] = False,
) -> None:
    """Hold the options that every command shares."""


def main() -> None:
    """Run the command line. With `--json` a wrong usage is a line of JSON too."""
    own = sys.argv[1:]
    own = own[: own.index("--")] if "--" in own else own
    if "--json" not in own:
        app()
        return
    try:
        code = app(standalone_mode=False)
    except ClickException as error:
        from sandkeeper.cli.connection import Exit, report_error  # noqa: PLC0415

        report_error(Exit(error.exit_code), error.format_message())
        code = error.exit_code
    except typer.Abort:
        code = 1
    sys.exit(code or 0)


if __name__ == "__main__":
    main()
