"""The backend of a deep agent: its commands, and the file tools that it gives to a model."""

import asyncio

import e2b
from langchain_e2b import AsyncE2BSandbox, E2BSandbox

box = e2b.Sandbox.create(timeout=600)
backend = E2BSandbox(sandbox=box, workdir="/home/user")
assert backend.id == box.sandbox_id
print("create")

ran = backend.execute("echo hello; exit 3")
assert (ran.output.strip(), ran.exit_code) == ("hello", 3), ran
print("run")

assert backend.write("/home/user/note.txt", "kept\nwell\n").error is None
assert "kept" in str(backend.read("/home/user/note.txt"))
assert backend.edit("/home/user/note.txt", "well", "safe").error is None
assert "note.txt" in str(backend.grep("safe", path="/home/user"))
assert "note.txt" in str(backend.glob("*.txt", path="/home/user"))
assert "note.txt" in str(backend.ls("/home/user"))
assert backend.upload_files([("/home/user/up.bin", b"\x00\xff")])[0].error is None
assert backend.download_files(["/home/user/up.bin"])[0].content == b"\x00\xff"
assert backend.download_files(["/home/user/none"])[0].error == "file_not_found"
print("files")


async def use_async() -> None:
    other = AsyncE2BSandbox(
        sandbox=await e2b.AsyncSandbox.connect(box.sandbox_id), workdir="/home/user"
    )
    assert "safe" in (await other.aexecute("cat note.txt")).output
    assert "note.txt" in str(await other.agrep("safe", path="/home/user"))


box.pause()
asyncio.run(use_async())
print("pause")

assert box.kill()
assert not e2b.Sandbox.kill(box.sandbox_id)
print("kill")
