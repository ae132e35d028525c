"""openai-agents: a function tool whose sandbox is leased for each call."""

import asyncio
from typing import Any

from agents import Agent, Model, ModelResponse, Runner, Usage, function_tool, set_tracing_disabled
from openai.types.responses import (
    ResponseFunctionToolCall,
    ResponseOutputMessage,
    ResponseOutputText,
)

from sandkeeper.client import AsyncSandkeeper


class ScriptedModel(Model):
    """Takes the place of a real model: calls the tool once, then repeats what it said."""

    async def get_response(
        self, system_instructions: str | None, input: Any, *rest: Any, **more: Any
    ) -> ModelResponse:
        said = [one["output"] for one in input if one.get("type") == "function_call_output"]
        if said:
            text = ResponseOutputText(
                text=f"It said {said[-1]}", type="output_text", annotations=[]
            )
            output: Any = ResponseOutputMessage(
                id="1", role="assistant", status="completed", type="message", content=[text]
            )
        else:
            output = ResponseFunctionToolCall(
                call_id="1",
                name="run_command",
                arguments='{"command": "echo $((6 * 7)) | tee answer.txt"}',
                type="function_call",
            )
        return ModelResponse(output=[output], usage=Usage(), response_id=None)

    def stream_response(self, *given: Any, **more: Any) -> Any:
        raise NotImplementedError("This example does not stream.")


async def main() -> None:
    set_tracing_disabled(True)
    async with AsyncSandkeeper() as keeper:

        @function_tool
        async def run_command(command: str) -> str:
            """Run a shell command in the conversation's sandbox."""
            async with keeper.lease("ada", "openai-agents") as sandbox:
                return (await sandbox.commands.run(command)).stdout

        agent = Agent(name="coder", model=ScriptedModel(), tools=[run_command])
        print((await Runner.run(agent, "How much is 6 * 7?")).final_output)


asyncio.run(main())
