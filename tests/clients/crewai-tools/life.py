"""An agent's tools: a persistent sandbox of their own, and one that was made elsewhere."""

from crewai_tools import E2BExecTool, E2BFileTool
from e2b import Sandbox

box = Sandbox.create(timeout=600, metadata={"by": "crewai"})
shell = E2BExecTool(sandbox_id=box.sandbox_id)
files = E2BFileTool(sandbox_id=box.sandbox_id)
own = E2BExecTool(persistent=True, envs={"TASTE": "bitter"})
assert own.run(command="echo $TASTE")["stdout"] == "bitter\n"
own.close()
assert E2BExecTool().run(command="echo once")["stdout"] == "once\n"
print("create")

assert shell.run(command="echo hello", cwd="/tmp")["stdout"] == "hello\n"
print("run")

files.run(action="write", path="/home/user/note.txt", content="kept")
assert "kept" in str(files.run(action="read", path="/home/user/note.txt"))
assert "note.txt" in str(files.run(action="list", path="/home/user"))
files.run(action="mkdir", path="/home/user/folder")
assert "note.txt" in str(files.run(action="info", path="/home/user/note.txt"))
files.run(action="delete", path="/home/user/folder")
assert "false" in str(files.run(action="exists", path="/home/user/folder")).lower()
print("files")

box.beta_pause()
assert shell.run(command="cat note.txt")["stdout"] == "kept"
print("pause")

assert box.kill()
assert not Sandbox.kill(box.sandbox_id)
print("kill")
