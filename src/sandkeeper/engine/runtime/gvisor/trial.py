"""The proof that gVisor works on this machine: a real sandbox that runs one real program."""

from __future__ import annotations

import asyncio
import contextlib
import os
import uuid
from pathlib import Path

from sandkeeper.engine.runtime.contract import (
    BootPlan,
    Command,
    Egress,
    Isolation,
    Runtime,
    RuntimeFaultError,
)

_ENV = {"PATH": "/usr/bin:/bin"}
_WITHIN_S = 30.0


async def run_trial(runtime: Runtime, data: Path) -> None:
    """Run a program on gVisor. Raises RuntimeFaultError with the reason why that is impossible."""
    name = f"trial{uuid.uuid4().hex}"
    disk = data / name
    plan = BootPlan(
        name,
        (),
        disk / "upper",
        disk / "work",
        egress=Egress(internet=False),
        isolation=Isolation.GVISOR,
    )
    try:
        async with asyncio.timeout(_WITHIN_S):
            await runtime.boot(plan)
            child = await runtime.spawn(name, Command(("true",), _ENV, stdin=False))
            for fd in (child.stdout, child.stderr):
                if fd is not None:
                    os.close(fd)
            code = await child.wait()
    except TimeoutError:
        raise RuntimeFaultError(f"gVisor ran no program within {_WITHIN_S:.0f} s") from None
    finally:
        with contextlib.suppress(RuntimeFaultError):
            await runtime.halt(name)
            await runtime.discard(disk)
    if code != 0:
        raise RuntimeFaultError(f"a trial program on gVisor ended with exit code {code}")
