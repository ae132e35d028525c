"""An agent's toolkit: code with a chart, commands, files, a server, and the sandbox's end."""

import json
import tempfile
from pathlib import Path

from agno.tools.e2b import E2BTools
from e2b_code_interpreter import Sandbox

tools = E2BTools(timeout=600)
box = tools.sandbox
assert Sandbox.get_info(box.sandbox_id).state.value == "running"
print("create")

assert "42" in tools.run_python_code("print(6 * 7)")
chart = "import matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.show()"
tools.run_python_code(chart)
assert tools.last_execution.results[0].png
assert "hello" in tools.run_command("echo hello")
assert "one" in tools.stream_command("echo one; echo two")
running = tools.run_background_command("sleep 100")
assert "success" in tools.kill_background_command(running)
server = tools.run_server("python3 -m http.server 8000", 8000)
assert f"8000-{box.sandbox_id}" in server, server
print("run")

with tempfile.TemporaryDirectory() as folder:
    here = Path(folder, "note.txt")
    here.write_text("kept")
    tools.upload_file(str(here), "/home/user/note.txt")
    assert "kept" in tools.read_file_content("/home/user/note.txt")
    tools.write_file_content("/home/user/other.txt", "also kept")
assert "other.txt" in tools.list_files("/home/user")
print("files")

box.pause()
tools.sandbox = Sandbox.connect(box.sandbox_id)
assert "kept" in tools.read_file_content("/home/user/note.txt")
print("pause")

assert "900" in str(tools.set_sandbox_timeout(900))
assert json.loads(tools.shutdown_sandbox())["status"] == "success"
assert not Sandbox.kill(box.sandbox_id)
print("kill")
