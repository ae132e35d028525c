"""pydantic-ai: a tool whose sandbox is leased for each call."""

import asyncio

from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from sandkeeper.client import AsyncSandkeeper


def script(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    """Take the place of a real model: call the tool once, then repeat what it said."""
    last = messages[-1].parts[-1]
    if isinstance(last, ToolReturnPart):
        return ModelResponse(parts=[TextPart(f"It said {last.content}")])
    asked = {"command": "echo $((6 * 7)) | tee answer.txt"}
    return ModelResponse(parts=[ToolCallPart("run_command", asked)])


async def main() -> None:
    async with AsyncSandkeeper() as keeper:
        agent = Agent(FunctionModel(script))

        @agent.tool_plain
        async def run_command(command: str) -> str:
            """Run a shell command in the conversation's sandbox."""
            async with keeper.lease("ada", "pydantic-ai") as sandbox:
                return (await sandbox.commands.run(command)).stdout

        print((await agent.run("How much is 6 * 7?")).output)


asyncio.run(main())
