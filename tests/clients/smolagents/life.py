"""A coding agent's executor: packages, state between cells, errors and the final answer."""

import contextlib

from e2b_code_interpreter import Sandbox
from smolagents.monitoring import AgentLogger, LogLevel
from smolagents.remote_executors import E2BExecutor
from smolagents.utils import AgentError

executor = E2BExecutor(["numpy"], AgentLogger(LogLevel.OFF))
box = executor.sandbox
assert Sandbox.get_info(box.sandbox_id).state.value == "running"
print("create")

executor.send_tools({})
executor.send_variables({"weight": 20})
assert executor("import numpy as np\nint(np.ones(2).sum()) + weight").output == "22"
assert executor("print('on it')").logs == "on it\n"
with contextlib.suppress(AgentError):
    executor("1 / 0")
    raise AssertionError("the error was lost")
print("run")

executor("open('note.txt', 'w').write('kept')")
assert box.files.read("note.txt") == "kept"
print("files")

box.pause()
executor.sandbox = Sandbox.connect(box.sandbox_id)
assert executor("weight + 1").output == "21"
print("pause")

executor.cleanup()
assert not Sandbox.kill(box.sandbox_id)
print("kill")
