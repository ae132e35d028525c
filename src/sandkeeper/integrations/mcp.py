"""An agent's tools over the Model Context Protocol: one conversation, one sandbox.

Every call leases the conversation's sandbox, which is woken, recreated or created as needed.
Between calls there is no lease, so an idle sandbox is paused.

This module needs the extra `sandkeeper[mcp]`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version
from typing import Annotated, Literal

from e2b import CommandExitException, SandboxException
from e2b_code_interpreter.code_interpreter_async import AsyncSandbox
from e2b_code_interpreter.models import Execution
from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import ImageContent, TextContent
from pydantic import Field

from sandkeeper.client import AsyncSandkeeper
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


class SandboxTools:
    """The tools of one conversation."""

    def __init__(self, keeper: AsyncSandkeeper, *, user_id: str, task_id: str) -> None:
        self._keeper = keeper
        self._user_id = user_id
        self._task_id = task_id

    async def run_code(
        self,
        code: str,
        language: Literal["python", "javascript", "typescript", "bash"] = "python",
        timeout_s: Seconds = 300,
    ) -> list[Content]:
        """Run code. Variables and imports persist between calls; figures are returned as images."""
        async with self._lease() as sandbox:
            execution = await sandbox.run_code(code, language=language, timeout=timeout_s)
        return render_execution(execution)

    async def run_command(
        self, command: str, timeout_s: Seconds = 300, background: bool = False
    ) -> str:
        """Run a shell command to its end, or start it in the background.

        Returns exit code, stdout and stderr; for a background command, its process id.
        """
        async with self._lease() as sandbox:
            if background:
                # Without a time limit: a server should keep running.
                started = await sandbox.commands.run(command, background=True, timeout=0)
                return f"running as process {started.pid}"
            try:
                done = await sandbox.commands.run(command, timeout=timeout_s)
            except CommandExitException as error:
                return render_command(error.exit_code, error.stdout, error.stderr)
        return render_command(done.exit_code, done.stdout, done.stderr)

    async def get_address(self, port: Annotated[int, Field(ge=1, le=65535)]) -> str:
        """Return the URL of a server on this port of the sandbox."""
        async with self._lease() as sandbox:
            scheme, _, _ = sandbox.connection_config.api_url.partition("://")
            return f"{scheme}://{sandbox.get_host(port)}"

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

    @asynccontextmanager
    async def _lease(self) -> AsyncIterator[AsyncSandbox]:
        """Lease the sandbox during the block; raise errors as tool errors that a model can use."""
        leased = self._keeper.lease(
            self._user_id,
            self._task_id,
            kind="execution",
            holder="mcp",
            sandbox_class=AsyncSandbox,
        )
        try:
            async with leased as sandbox:
                yield sandbox
        except SandkeeperError as error:
            raise ToolError(f"{error.message} {error.hint}".strip()) from error
        except SandboxException as error:
            raise ToolError(str(error)) from error


def make_server(tools: SandboxTools) -> MCPServer:
    """Return the MCP server of one conversation; `run_stdio_async` serves it."""
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
    ):
        server.add_tool(tool, structured_output=False)
    return server


async def serve(*, url: str | None, user_id: str, task_id: str) -> None:
    """Serve the tools on standard input and output until the agent disconnects."""
    async with AsyncSandkeeper(url) as keeper:
        tools = SandboxTools(keeper, user_id=user_id, task_id=task_id)
        await make_server(tools).run_stdio_async()


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


def shorten(text: str) -> str:
    """Return the text, or its beginning and end if it is too long."""
    omitted = len(text) - TEXT_MAX
    if omitted <= 0:
        return text
    half = TEXT_MAX // 2
    return f"{text[:half]}\n… {omitted} characters omitted …\n{text[-half:]}"
