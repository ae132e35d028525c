"""Starts the service inside a sandbox when its port is requested and nothing listens there.

The service is passed as text in the environment of a short Python line. That line returns once the
port is open, so no polling is needed; the service keeps running below the sandbox's first process.
It survives a pause like any process. If a sandbox comes back without its memory, the next request
finds no listener and starts it again.

The first start also has the interpreter's packages installed, in the background, where they are
missing. The sandbox that asked does without them; those created later have them.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import functools
import json
import logging
import os
import signal
import sys
import weakref
import zlib
from importlib import resources

from sandkeeper.engine.envd.processes.service import SEARCH_PATH
from sandkeeper.engine.envd.users import InvalidUsernameError, find_user
from sandkeeper.engine.interpreter import layer
from sandkeeper.engine.interpreter.layer import SERVICE, PackagesLayer
from sandkeeper.engine.runtime.contract import Command, Runtime, RuntimeFaultError
from sandkeeper.engine.sandboxes.commands import run_to_end
from sandkeeper.engine.sandboxes.routing import RunningSandbox

_log = logging.getLogger("sandkeeper.engine")

PORT = 49999
_START_WITHIN_S = 60.0
_OUTPUT_MAX_BYTES = 4000
_INSIDE = "sandkeeper.engine.interpreter.inside"
_MODULES = ("languages", "interpreter_process", "contexts", "service")
_TEXTS = (
    *("reports.py", "ipython_kernel.py", "plain_kernel.py", "jupyter_bridge.py"),
    *("charts.py", "node_kernel.js"),
)
_BUNDLE = "CODE_INTERPRETER_BUNDLE"
# Makes modules out of the bundle, in the order in which they import each other, and runs the last.
_LINE = (
    "import base64,json,os,sys,types,zlib\n"
    f"p=json.loads(zlib.decompress(base64.b64decode(os.environ.pop('{_BUNDLE}'))))\n"
    "for n,t in p['modules']:\n"
    " m=sys.modules[n]=types.ModuleType(n);exec(compile(t,n,'exec'),m.__dict__)\n"
    "m.main(p['texts'],p['port'])\n"
)


class Interpreter:
    """Starts the code interpreter in sandboxes whose template has it."""

    def __init__(self, runtime: Runtime, packages: PackagesLayer) -> None:
        self._runtime = runtime
        self._packages = packages
        self._installing: asyncio.Task[None] | None = None
        self._turns: weakref.WeakValueDictionary[str, asyncio.Lock] = weakref.WeakValueDictionary()

    async def start(self, sandbox: RunningSandbox) -> bool:
        """Make the port open; False where the template has no interpreter or it does not start."""
        if SERVICE not in sandbox.services:
            return False
        turn = self._turns.get(sandbox.sandbox_id)
        if turn is None:
            turn = self._turns[sandbox.sandbox_id] = asyncio.Lock()
        # One start at a time: the second request finds the port open, which is success, too.
        async with turn:
            started = await self._start(sandbox)
        if self._installing is None and not self._packages.folder.is_dir():
            self._installing = asyncio.create_task(self._install())
        return started

    async def close(self) -> None:
        """End an installation in progress; the next engine begins it again."""
        if self._installing is not None:
            self._installing.cancel()
            await asyncio.gather(self._installing, return_exceptions=True)

    async def _install(self) -> None:
        _log.info("the code interpreter's packages are being installed; until then it has none")
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", layer.__name__),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            assert process.stdout is not None
            async for line in process.stdout:
                _log.info("code interpreter: %s", line.decode(errors="replace").strip())
            await process.wait()
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)

    async def _start(self, sandbox: RunningSandbox) -> bool:
        output = bytearray()
        try:
            user = find_user(self._runtime, sandbox, None)
            command = Command(
                argv=("/usr/bin/python3", "-I", "-c", _LINE),
                env={
                    "PATH": SEARCH_PATH,
                    "HOME": user.home,
                    "USER": user.name,
                    "LOGNAME": user.name,
                    **sandbox.env,
                    _BUNDLE: _bundle(),
                },
                user=user.name,
                cwd=user.home,
                stdin=False,
            )
            code = await run_to_end(
                self._runtime,
                sandbox.sandbox_id,
                command,
                on_output=lambda data: output.extend(data[: _OUTPUT_MAX_BYTES - len(output)]),
                within_s=_START_WITHIN_S,
            )
        except (FileNotFoundError, TimeoutError, InvalidUsernameError, RuntimeFaultError) as error:
            _log.warning("the interpreter of %s did not start: %r", sandbox.sandbox_id, error)
            return False
        if code != 0:
            text = output.decode(errors="replace").strip()
            _log.warning("the interpreter of %s did not start: %s", sandbox.sandbox_id, text)
        return code == 0


@functools.cache
def _bundle() -> str:
    """Pack everything that goes inside into one string."""
    folder = resources.files(_INSIDE)
    packed = {
        "modules": [
            (f"{_INSIDE}.{name}", (folder / f"{name}.py").read_text()) for name in _MODULES
        ],
        "texts": {name: (folder / name).read_text() for name in _TEXTS},
        "port": PORT,
    }
    return base64.b64encode(zlib.compress(json.dumps(packed).encode(), 9)).decode()
