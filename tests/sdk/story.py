"""A short life with an old official SDK: create, run, files, pause, connect, kill, and run code.

`story.py sync` or `story.py async`, with E2B_API_URL, E2B_SANDBOX_URL and E2B_API_KEY set and the
SDK versions under test first on the path. Prints one line at the end.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import socket
import sys

import e2b
import e2b_code_interpreter

SYNC = sys.argv[1] == "sync"
Sandbox = e2b_code_interpreter.Sandbox if SYNC else e2b_code_interpreter.AsyncSandbox


# Before 2.9 the package for code wants https and a name, `{port}-{id}.{domain}`, also where
# E2B_SANDBOX_URL is set. Here both are spared; the paths, bodies and answers are its own.
Sandbox._jupyter_url = property(lambda box: f"http://{box.get_host(49999)}")
resolve = socket.getaddrinfo


def resolve_names(host, *rest, **options):
    name = host.decode() if isinstance(host, bytes) else host
    return resolve("127.0.0.1" if name.endswith(".localhost") else host, *rest, **options)


socket.getaddrinfo = resolve_names


async def now(value):
    return await value if inspect.isawaitable(value) else value


async def main():
    box = await now(Sandbox.create(timeout=600, metadata={"story": "old"}, envs={"A": "1"}))
    assert (await now(box.get_info())).metadata == {"story": "old"}
    assert await now(box.is_running())
    assert (await now(box.commands.run("echo $A"))).stdout == "1\n"
    await now(box.files.write("note.txt", "kept"))
    ran = await now(box.run_code("print('hi')\nopen('note.txt').read()"))
    assert (ran.text, ran.logs.stdout, ran.error) == ("kept", ["hi\n"], None), ran
    context = await now(box.create_code_context(cwd="/tmp"))
    assert (await now(box.run_code("import os; os.getcwd()", context=context))).text == "/tmp"
    await now(box.set_timeout(900))
    await now(box.beta_pause() if hasattr(box, "beta_pause") else box.pause())
    assert (await now(Sandbox.get_info(box.sandbox_id))).state == e2b.SandboxState.PAUSED
    back = await now(Sandbox.connect(box.sandbox_id, timeout=600))
    assert await now(back.files.read("note.txt")) == "kept"
    assert (await now(back.run_code("1 / 0"))).error.name == "ZeroDivisionError"
    assert await now(back.kill())
    assert not await now(Sandbox.kill(box.sandbox_id))
    print("held: story")


asyncio.run(main())
# The SDK's transport aborts now and then while the interpreter shuts down. All is held by then.
sys.stdout.flush()
os._exit(0)
