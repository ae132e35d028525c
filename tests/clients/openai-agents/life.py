"""A sandbox session: workspace, commands, a terminal, pause on exit, resume, and snapshots."""

import asyncio
import io
from pathlib import Path

import e2b
from agents.extensions.sandbox.e2b import E2BSandboxClient, E2BSandboxClientOptions


async def live(kind: str) -> None:
    client = E2BSandboxClient()
    options = E2BSandboxClientOptions(
        sandbox_type=kind, timeout=600, pause_on_exit=True, exposed_ports=(8000,)
    )
    session = await client.create(options=options)
    await session.start()
    name = session.state.sandbox_id
    assert await session.running()
    print("create")

    ran = await session.exec("echo hello; exit 3")
    assert (ran.stdout, ran.exit_code) == (b"hello\n", 3), ran
    started = await session.pty_exec_start("cat", tty=True, yield_time_s=1)
    answered = await session.pty_write_stdin(
        session_id=started.process_id, chars="typed\n", yield_time_s=2
    )
    assert b"typed" in answered.output, answered
    await session.pty_terminate_all()
    print("run")

    await session.write(Path("note.txt"), io.BytesIO(b"kept"))
    assert (await session.read(Path("note.txt"))).read() == b"kept"
    await session.mkdir(Path("folder"))
    archive = await session.persist_workspace()
    assert b"note.txt" in archive.read()
    port = await session.resolve_exposed_port(8000)
    assert name in port.host
    print("files")

    await session.shutdown()
    assert (await e2b.AsyncSandbox.get_info(name)).state.value == "paused"
    again = await client.resume(session.state)
    await again.start()
    assert again.state.sandbox_id == name
    assert (await again.read(Path("note.txt"))).read() == b"kept"
    print("pause")

    assert await e2b.AsyncSandbox.kill(name)
    assert not await e2b.AsyncSandbox.kill(name)
    print("kill")


for kind in ("e2b", "e2b_code_interpreter"):
    asyncio.run(live(kind))
