"""An agent's tools over the Model Context Protocol: one conversation, one sandbox.

Every call leases the conversation's sandbox, so it is there whatever became of it since the last
one: asleep, ended by the provider, never made. Between calls nobody holds it, and it may sleep.

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

# What one answer may hold. A model cannot read more, and the beginning and the end say the most.
TEXT_MAX = 50_000
IMAGES_MAX = 8
FILE_MAX = 1_000_000
ENTRIES_MAX = 1000

INSTRUCTIONS = """\
A Linux sandbox that belongs to this conversation. Files, installed packages and variables stay
between calls. It sleeps when it is not used and comes back with every file by itself."""

Content = TextContent | ImageContent
Path = Annotated[str, Field(description="A path; a relative one begins at the home folder.")]
Seconds = Annotated[float, Field(gt=0, le=3600, description="How long it may take.")]


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
        """Run code. Variables and imports stay for the next call; figures come as pictures."""
        async with self._lease() as sandbox:
            execution = await sandbox.run_code(code, language=language, timeout=timeout_s)
        return render_execution(execution)

    async def run_command(
        self, command: str, timeout_s: Seconds = 300, background: bool = False
    ) -> str:
        """Run a shell command to its end, or leave it running in the background.

        Gives exit code, output and errors; of one in the background the process id.
        """
        async with self._lease() as sandbox:
            if background:
                # Without a time limit of its own: a server is meant to go on.
                started = await sandbox.commands.run(command, background=True, timeout=0)
                return f"running as process {started.pid}"
            try:
                done = await sandbox.commands.run(command, timeout=timeout_s)
            except CommandExitException as error:
                return render_command(error.exit_code, error.stdout, error.stderr)
        return render_command(done.exit_code, done.stdout, done.stderr)

    async def get_address(self, port: Annotated[int, Field(ge=1, le=65535)]) -> str:
        """The URL at which a server on this port of the sandbox can be opened."""
        async with self._lease() as sandbox:
            scheme, _, _ = sandbox.connection_config.api_url.partition("://")
            return f"{scheme}://{sandbox.get_host(port)}"

    async def read_file(self, path: Path) -> str:
        """Read a text file."""
        async with self._lease() as sandbox:
            size = (await sandbox.files.get_info(path)).size
            if size > FILE_MAX:
                raise ToolError(f"{path} has {size} bytes; at most {FILE_MAX} are read at once.")
            return await sandbox.files.read(path)

    async def write_file(self, path: Path, content: str) -> str:
        """Write a text file; its folders are made, and what was there is replaced."""
        async with self._lease() as sandbox:
            written = await sandbox.files.write(path, content)
        return f"{written.path} is written."

    async def list_files(self, path: Path = ".") -> str:
        """List a folder: each entry's kind, size and name."""
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
        """The sandbox, in use meanwhile. What goes wrong is told in words that a model can use."""
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


def make_server(toolbox: SandboxTools) -> MCPServer:
    """The protocol's server for one conversation; `run_stdio_async` serves it."""
    server = MCPServer(
        "sandkeeper",
        instructions=INSTRUCTIONS,
        version=version("sandkeeper"),
        log_level="WARNING",
    )
    for tool in (
        toolbox.run_code,
        toolbox.run_command,
        toolbox.read_file,
        toolbox.write_file,
        toolbox.list_files,
        toolbox.get_address,
    ):
        server.add_tool(tool, structured_output=False)
    return server


async def serve(*, url: str | None, user_id: str, task_id: str) -> None:
    """Serve the tools on standard input and output until the agent hangs up."""
    async with AsyncSandkeeper(url) as keeper:
        toolbox = SandboxTools(keeper, user_id=user_id, task_id=task_id)
        await make_server(toolbox).run_stdio_async()


def render_execution(execution: Execution) -> list[Content]:
    """What ran code said and gave: outputs, values and errors as text, figures as pictures."""
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
    return content or [TextContent(type="text", text="done, without any output")]


def render_command(exit_code: int, stdout: str, stderr: str) -> str:
    """A command's end, its output and its errors."""
    said = [f"exit code {exit_code}"]
    said += [shorten(text) for text in (stdout, stderr) if text]
    return "\n".join(said)


def shorten(text: str) -> str:
    """The text, or its beginning and its end with what was left out between them."""
    left_out = len(text) - TEXT_MAX
    if left_out <= 0:
        return text
    half = TEXT_MAX // 2
    return f"{text[:half]}\n… {left_out} characters left out …\n{text[-half:]}"
