"""LangChain and deepagents: a tool whose sandbox is leased for each call."""

import asyncio
from typing import Any

from deepagents import create_deep_agent
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult

from sandkeeper.client import AsyncSandkeeper


class ScriptedModel(BaseChatModel):
    """Takes the place of a real model: calls the tool once, then repeats what it said."""

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, *given: Any, **more: Any) -> "ScriptedModel":
        return self

    def _generate(self, messages: list[BaseMessage], *given: Any, **more: Any) -> ChatResult:
        last = messages[-1]
        if isinstance(last, ToolMessage):
            answer = AIMessage(f"It said {last.content}")
        else:
            asked = {"command": "echo $((6 * 7)) | tee answer.txt"}
            call = {"id": "1", "name": "run_command", "args": asked}
            answer = AIMessage("", tool_calls=[call])
        return ChatResult(generations=[ChatGeneration(message=answer)])


async def main() -> None:
    async with AsyncSandkeeper() as keeper:

        async def run_command(command: str) -> str:
            """Run a shell command in the conversation's sandbox."""
            async with keeper.lease("ada", "deepagents") as sandbox:
                return (await sandbox.commands.run(command)).stdout

        agent = create_deep_agent(ScriptedModel(), [run_command])
        asked = {"messages": [{"role": "user", "content": "How much is 6 * 7?"}]}
        print((await agent.ainvoke(asked))["messages"][-1].content)


asyncio.run(main())
