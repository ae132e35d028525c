"""smolagents: a tool whose sandbox is leased for each call."""

from typing import Any

from smolagents import ChatMessage, LogLevel, Model, ToolCallingAgent, tool
from smolagents.models import ChatMessageToolCall, ChatMessageToolCallFunction, MessageRole

from sandkeeper.client import Sandkeeper

keeper = Sandkeeper()


@tool
def run_command(command: str) -> str:
    """Run a shell command in the conversation's sandbox.

    Args:
        command: The command.
    """
    with keeper.lease("ada", "smolagents") as sandbox:
        return sandbox.commands.run(command).stdout


class ScriptedModel(Model):
    """Takes the place of a real model: calls the tool once, then repeats what it said."""

    def generate(self, messages: list[ChatMessage], *given: Any, **more: Any) -> ChatMessage:
        last = messages[-1]
        if last.role == MessageRole.TOOL_RESPONSE:
            said = last.content[0]["text"].partition(":")[2].strip()
            name, arguments = "final_answer", {"answer": f"It said {said}"}
        else:
            name, arguments = "run_command", {"command": "echo $((6 * 7)) | tee answer.txt"}
        function = ChatMessageToolCallFunction(name=name, arguments=arguments)
        calls = [ChatMessageToolCall(function=function, id="1", type="function")]
        return ChatMessage(role=MessageRole.ASSISTANT, content="", tool_calls=calls)


with keeper:
    agent = ToolCallingAgent([run_command], ScriptedModel(), verbosity_level=LogLevel.OFF)
    print(agent.run("How much is 6 * 7?"))
