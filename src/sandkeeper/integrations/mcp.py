"""An agent's tools over the Model Context Protocol: one conversation, one sandbox.

Every call leases the conversation's sandbox, which is woken, recreated or created as needed.
Between calls there is no lease, so an idle sandbox is paused. `mcp_http` serves the same tools over
HTTP.

This module needs the extra `sandkeeper[mcp]`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib.metadata import version
from typing import Annotated, Literal

from e2b import CommandExitException, SandboxException
from e2b_code_interpreter.code_interpreter_async import AsyncSandbox
from e2b_code_interpreter.models import Execution
from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import CallToolResult, ImageContent, TextContent
from pydantic import Field

from sandkeeper.client import AsyncSandkeeper
from sandkeeper.client.projects import AsyncProject
from sandkeeper.client.sdk_handles import build_sdk_sandbox
from sandkeeper.domain.errors import SandkeeperError

# Limits of one result. A model cannot use more; the beginning and the end matter most.
TEXT_MAX = 50_000
IMAGES_MAX = 8
FILE_MAX = 1_000_000
ENTRIES_MAX = 1000

INSTRUCTIONS = """\
A Linux sandbox that belongs to this conversation. Files, installed packages and variables persist
between calls. It is paused when idle and resumes automatically with all files."""

Content = TextContent | ImageContent
Path = Annotated[str, Field(description="A path, absolute or relative to the home folder.")]
Seconds = Annotated[float, Field(gt=0, le=3600, description="Time limit in seconds.")]


# The state of a listening socket in /proc/net/tcp.
LISTENING = "0A"


@dataclass(frozen=True, slots=True)
class Conversation:
    """Whose sandbox the tools use, and the keeper that has it."""

    keeper: AsyncSandkeeper
    user_id: str
    task_id: str


class SandboxTools:
    """The tools; `find` returns the conversation of the current call."""

    def __init__(self, find: Callable[[], Conversation]) -> None:
        self._find = find

    async def run_code(
        self,
        code: str,
        language: Literal["python", "javascript", "typescript", "bash"] = "python",
        timeout_s: Seconds = 300,
    ) -> CallToolResult:
        """Run code. Variables and imports persist between calls; figures are returned as images."""
        async with self._lease() as sandbox:
            execution = await sandbox.run_code(code, language=language, timeout=timeout_s)
        is_error = execution.error is not None
        return CallToolResult(content=[*render_execution(execution)], is_error=is_error)

    async def run_command(
        self, command: str, timeout_s: Seconds = 300, background: bool = False
    ) -> CallToolResult:
        """Run a shell command to its end, or start it in the background.

        Returns exit code, stdout and stderr; for a background command, its process id.
        """
        async with self._lease() as sandbox:
            if background:
                # Without a time limit: a server should keep running.
                started = await sandbox.commands.run(command, background=True, timeout=0)
                return _to_result(f"running as process {started.pid}")
            try:
                done = await sandbox.commands.run(command, timeout=timeout_s)
            except CommandExitException as error:
                text = render_command(error.exit_code, error.stdout, error.stderr)
                return _to_result(text, is_error=True)
        return _to_result(render_command(done.exit_code, done.stdout, done.stderr))

    async def list_ports(self) -> str:
        """List the ports on which servers in the sandbox listen, each with its URL."""
        async with self._lease() as sandbox:
            found = await sandbox.commands.run("cat /proc/net/tcp /proc/net/tcp6 2>/dev/null; true")
            ports = parse_listening_ports(found.stdout)
            lines = [f"{port}\t{_address(sandbox, port)}" for port in ports[:ENTRIES_MAX]]
        return "\n".join(lines) or "No server listens."

    async def get_address(self, port: Annotated[int, Field(ge=1, le=65535)]) -> str:
        """Return the URL of a server on this port of the sandbox."""
        async with self._lease() as sandbox:
            return _address(sandbox, port)

    async def read_file(self, path: Path) -> str:
        """Read a text file."""
        async with self._lease() as sandbox:
            size = (await sandbox.files.get_info(path)).size
            if size > FILE_MAX:
                raise ToolError(f"{path} has {size} bytes; at most {FILE_MAX} can be read.")
            return await sandbox.files.read(path)

    async def write_file(self, path: Path, content: str) -> str:
        """Write a text file; create its folders and replace an existing file."""
        async with self._lease() as sandbox:
            written = await sandbox.files.write(path, content)
        return f"Wrote {written.path}."

    async def list_files(self, path: Path = ".") -> str:
        """List a folder: kind, size and name of each entry."""
        async with self._lease() as sandbox:
            entries = await sandbox.files.list(path)
        lines = [
            f"{entry.type.value if entry.type else 'other'}\t{entry.size}\t{entry.name}"
            for entry in entries[:ENTRIES_MAX]
        ]
        if len(entries) > ENTRIES_MAX:
            lines.append(f"and {len(entries) - ENTRIES_MAX} more")
        return "\n".join(lines) or "The folder is empty."

    async def save_checkpoint(self) -> str:
        """Save all files as they are now; return the checkpoint's number.

        Files are also saved on their own, when the sandbox is paused and at intervals.
        """
        async with self._hold() as (_, project):
            saved = await project.files.capture()
        state = "saved" if saved.is_new else "nothing had changed since"
        return f"checkpoint {saved.version}: {state}, {saved.files} files"

    async def list_checkpoints(self) -> str:
        """List the saved checkpoints, newest first: number, time, number of files."""
        async with self._hold() as (_, project):
            found = await project.files.versions()
        lines = [f"{one.number}\t{one.created_at:%Y-%m-%dT%H:%M:%SZ}\t{one.files}" for one in found]
        return "\n".join(lines[:ENTRIES_MAX]) or "There is no checkpoint."

    async def restore_file(
        self,
        path: Annotated[str, Field(description="A path relative to the home folder.")],
        checkpoint: Annotated[int, Field(ge=1, description="Its number, from list_checkpoints.")],
    ) -> str:
        """Bring a file back as it was at a checkpoint. The current one is replaced."""
        async with self._hold() as (_, project):
            await project.files.write(path, await project.files.read(path, version=checkpoint))
        return f"Restored {path} from checkpoint {checkpoint}."

    @asynccontextmanager
    async def _lease(self) -> AsyncIterator[AsyncSandbox]:
        async with self._hold() as (sandbox, _):
            yield sandbox

    @asynccontextmanager
    async def _hold(self) -> AsyncIterator[tuple[AsyncSandbox, AsyncProject]]:
        """Lease the sandbox during the block; raise errors as tool errors that a model can use."""
        now = self._find()
        held = now.keeper.sessions.hold(now.user_id, now.task_id, kind="execution", holder="mcp")
        try:
            async with held as session:
                sandbox = build_sdk_sandbox(AsyncSandbox, session.connection)
                yield sandbox, now.keeper.project(f"session:{session.id}")
        except SandkeeperError as error:
            raise ToolError(f"{error.message} {error.hint}".strip()) from error
        except SandboxException as error:
            raise ToolError(str(error)) from error


def make_server(tools: SandboxTools) -> MCPServer:
    """Return the MCP server of the tools; `run_stdio_async` serves it."""
    server = MCPServer(
        "sandkeeper",
        instructions=INSTRUCTIONS,
        version=version("sandkeeper"),
        log_level="WARNING",
    )
    for tool in (
        tools.run_code,
        tools.run_command,
        tools.read_file,
        tools.write_file,
        tools.list_files,
        tools.get_address,
        tools.list_ports,
        tools.save_checkpoint,
        tools.list_checkpoints,
        tools.restore_file,
    ):
        server.add_tool(tool, structured_output=False)
    return server


async def serve(*, url: str | None, user_id: str, task_id: str) -> None:
    """Serve the tools on standard input and output until the agent disconnects."""
    async with AsyncSandkeeper(url) as keeper:
        conversation = Conversation(keeper, user_id, task_id)
        await make_server(SandboxTools(lambda: conversation)).run_stdio_async()


def render_execution(execution: Execution) -> list[Content]:
    """Return output, values and errors of executed code as text, and figures as images."""
    texts = ["".join(execution.logs.stdout), "".join(execution.logs.stderr)]
    texts += [result.text for result in execution.results if result.text and not result.png]
    if execution.error is not None:
        texts.append(execution.error.traceback)
    content: list[Content] = [
        TextContent(type="text", text=shorten(text)) for text in texts if text
    ]
    pictures = [result.png for result in execution.results if result.png]
    content += [
        ImageContent(type="image", data=picture, mime_type="image/png")
        for picture in pictures[:IMAGES_MAX]
    ]
    return content or [TextContent(type="text", text="done, no output")]


def render_command(exit_code: int, stdout: str, stderr: str) -> str:
    """Return exit code, stdout and stderr of a command as text."""
    lines = [f"exit code {exit_code}"]
    lines += [shorten(text) for text in (stdout, stderr) if text]
    return "\n".join(lines)


def parse_listening_ports(table: str) -> list[int]:
    """Return the ports on which a server listens, from the lines of /proc/net/tcp."""
    fields = [line.split() for line in table.splitlines()]
    return sorted({int(one[1].rpartition(":")[2], 16) for one in fields if one[3:4] == [LISTENING]})


def _address(sandbox: AsyncSandbox, port: int) -> str:
    scheme, _, _ = sandbox.connection_config.api_url.partition("://")
    return f"{scheme}://{sandbox.get_host(port)}"


def _to_result(text: str, *, is_error: bool = False) -> CallToolResult:
    return CallToolResult(content=[TextContent(type="text", text=text)], is_error=is_error)


def shorten(text: str) -> str:
    """Return the text, or its beginning and end if it is too long."""
    omitted = len(text) - TEXT_MAX
    if omitted <= 0:
        return text
    half = TEXT_MAX // 2
    return f"{text[:half]}\n… {omitted} characters omitted …\n{text[-half:]}"
