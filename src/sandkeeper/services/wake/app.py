"""The app inside a sandbox: start it, check it from outside, detect its end, read its last lines.

The app is one command in the work folder. It runs in a session of its own, apart from the process
that started it. Each of its processes carries a mark in its environment, so leftover ones are found
after a resume, whatever their name. Whether it *answers* is checked from our side, the way a
browser connects. All of this needs only a shell and the usual small programs inside.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import e2b
import structlog
from e2b import AsyncSandbox

from sandkeeper.domain.errors import AppNotReadyError
from sandkeeper.domain.policy import AppOnResume
from sandkeeper.domain.receipt import Receipt, WakeMethod
from sandkeeper.domain.sandbox import Sandbox
from sandkeeper.domain.states import State
from sandkeeper.providers.acting_claim import find_acting_claim
from sandkeeper.services.deps import Deps
from sandkeeper.services.files.agent.client import FencedError, locate_fence
from sandkeeper.services.files.agent.posix_fallback import REFUSED, make_guard_line

log = structlog.get_logger(__name__)

HOME = "/home/user"
PLACE = "/tmp/.sandkeeper"  # noqa: S108  Inside the sandbox, whose only user it is.
NO_FOLDER = 90
LINES_MAX = 1000
LOG_BYTES_MAX = 256 * 1024
COMMAND_TIMEOUT_S = 30

# The pauses before the checks of a resumed app. More delays the restart of an app that is gone;
# fewer restarts one that needed a moment.
SURVIVAL_KNOCKS_S = (0.0, 0.05, 0.2)

# Ends what an earlier start left: processes with our mark, and the process on the app's port.
END = r"""
holders() {
  port=$(printf ':%04X' "$1")
  for inode in $(awk -v p="$port" '$4 == "0A" && substr($2, length($2) - 4) == p { print $10 }' \
      /proc/net/tcp /proc/net/tcp6 2>/dev/null); do
    find /proc/[0-9]*/fd -lname "socket:\[$inode\]" 2>/dev/null | cut -d/ -f3
  done
}
left() {
  { grep -lz '^SANDKEEPER_APP=' /proc/[0-9]*/environ 2>/dev/null | cut -d/ -f3
    if [ -n "$SK_PORT" ]; then holders "$SK_PORT"; fi; } | sort -u
}
pids=$(left)
if [ -n "$pids" ]; then
  kill -TERM $pids 2>/dev/null
  for _ in $(seq 40); do
    alive=
    for pid in $pids; do
      state=$(cut -d')' -f2 "/proc/$pid/stat" 2>/dev/null | cut -c2)
      case "$state" in ''|Z) ;; *) alive=1 ;; esac
    done
    if [ -z "$alive" ]; then break; fi
    sleep 0.05
  done
  kill -KILL $(left) 2>/dev/null
fi
"""

# The app's output goes through a pipe into a file that is rotated at half a megabyte. With the one
# rotated before, there are never more than two files. At most 512 KiB are read at a time, each
# piece written as it comes; an empty read is the end. A full disk costs the log and not the app.
START = (
    END
    + r"""
mkdir -p "$SK_PLACE" "$SK_WORKDIR" || exit 90
cd "$SK_WORKDIR" || exit 90
rm -f "$SK_PLACE/exit" "$SK_PLACE/log.1"
if [ -f "$SK_PLACE/log" ]; then mv -f "$SK_PLACE/log" "$SK_PLACE/log.before"; fi
run='
log="$1/log"
{ bash -c "$2" 2>&1; echo $? > "$1/exit"; } | {
  size=0
  while :; do
    if dd bs=8192 count=64 >> "$log" 2> /dev/null; then
      before=$size
      size=$(wc -c < "$log")
      if [ "$size" -eq "$before" ]; then break; fi
      if [ "$size" -ge 524288 ]; then mv -f "$log" "$log.1"; size=0; fi
    else
      : > "$log" || exec cat
      size=0
    fi
  done
}'
SANDKEEPER_APP=1 env -u SK_COMMAND -u SK_WORKDIR -u SK_PORT -u SK_PLACE \
  setsid bash -c "$run" app "$SK_PLACE" "$SK_COMMAND" \
  > /dev/null 2>&1 < /dev/null &
"""
)

# Succeeds while a process with our mark runs and the app has not ended.
ALIVE = r"""
[ ! -f "$SK_PLACE/exit" ] && grep -qlz '^SANDKEEPER_APP=' /proc/[0-9]*/environ 2>/dev/null
"""

READ = r"""
if [ -f "$SK_PLACE/exit" ]; then sleep 0.05; head -n 1 "$SK_PLACE/exit"; fi  # The last line comes.
echo
cat "$SK_PLACE/log.1" "$SK_PLACE/log" 2>/dev/null | tail -c "$SK_BYTES" | tail -n "$SK_LINES"
"""


@dataclass(frozen=True, slots=True)
class AppOutput:
    """The last lines of the app, and how it ended; `exit_code` is None while it runs."""

    lines: tuple[str, ...]
    exit_code: int | None = None


class AppRunner:
    """Start apps, read their output and check whether they answer."""

    def __init__(self, deps: Deps) -> None:
        self._providers = deps.providers

    async def start(self, sandbox: Sandbox, native: AsyncSandbox) -> None:
        """End what is left of the app and start it; return before it answers."""
        launch = sandbox.launch
        assert launch.start_command is not None
        workdir = launch.workdir or HOME
        envs = {
            "SK_COMMAND": launch.start_command,
            "SK_WORKDIR": workdir,
            "SK_PORT": str(launch.port or ""),
            "SK_PLACE": PLACE,
        }
        code = await self._run_guarded(sandbox, native, START, envs)
        if code == NO_FOLDER:
            raise AppNotReadyError(
                f"The work folder {workdir} cannot be made or entered.", workdir=workdir
            )

    async def _run_guarded(
        self, sandbox: Sandbox, native: AsyncSandbox, script: str, envs: dict[str, str]
    ) -> int:
        """Run a script under the claim in force, and return its exit code.

        A refusal is overruled only if the database says that this claim is the newest.
        """
        claim = find_acting_claim()
        if claim is None:
            return (await self._run(sandbox, native, script, envs))[0]
        path, number = locate_fence(sandbox.id), claim.number
        claim.check()
        guard = make_guard_line((path, number, False))
        code, _ = await self._run(sandbox, native, guard + script, envs)
        if code != REFUSED:
            return code
        if not await claim.confirm():
            raise FencedError
        guard = make_guard_line((path, number, True))
        return (await self._run(sandbox, native, guard + script, envs))[0]

    async def read(self, sandbox: Sandbox, *, lines: int) -> AppOutput:
        """Return the app's last lines. A sandbox that does not run is not touched and has none."""
        if sandbox.state is not State.RUNNING or sandbox.instance_id is None:
            return AppOutput(())
        native = await self._providers.get(sandbox).open_sdk_sandbox(sandbox.instance_id)
        return await self.read_inside(sandbox, native, lines=lines)

    async def read_inside(
        self, sandbox: Sandbox, native: AsyncSandbox, *, lines: int = 20
    ) -> AppOutput:
        """Do the same as `read`, for a caller that already has a handle of the running sandbox."""
        envs = {
            "SK_PLACE": PLACE,
            "SK_BYTES": str(LOG_BYTES_MAX),
            "SK_LINES": str(max(1, min(lines, LINES_MAX))),
        }
        _, out = await self._run(sandbox, native, READ, envs)
        first, _, rest = out.partition("\n")
        exit_code = int(first) if first.strip().isdecimal() else None
        # With an exit code, the file's own line end precedes the one that separates the two.
        text = rest.removeprefix("\n") if exit_code is not None else rest
        return AppOutput(tuple(text.splitlines()), exit_code)

    async def answers(self, sandbox: Sandbox) -> bool:
        """Return whether the app answers on its port; without a port there is nothing to ask."""
        port = sandbox.launch.port
        if port is None or sandbox.instance_id is None:
            return port is None
        return await self._providers.get(sandbox).probe_port(sandbox.instance_id, port)

    async def may_be_kept(self, sandbox: Sandbox, native: AsyncSandbox, receipt: Receipt) -> bool:
        """Return whether the app came back with the memory and still works on the same files.

        It must answer on its port; without a port its process must run.
        """
        if sandbox.policy.app_on_resume is AppOnResume.RESTART or receipt.restored:
            return False
        if receipt.method is not WakeMethod.RESUME:
            return False
        # Under the claim even if only the port decides: from here on an older start is refused.
        code, answers = await asyncio.gather(
            self._run_guarded(sandbox, native, ALIVE, {"SK_PLACE": PLACE}),
            self._answers_soon(sandbox),
        )
        return code == 0 if sandbox.launch.port is None else answers

    async def is_back(self, sandbox: Sandbox) -> bool:
        """Return whether a sandbox that was just resumed can be used as it is.

        An app must have come back with the memory; what else has a port must answer there.
        """
        launch = sandbox.launch
        if launch.start_command is None:
            return await self.answers(sandbox)
        if sandbox.policy.app_on_resume is AppOnResume.RESTART:
            return False
        if launch.port is not None:
            return await self._answers_soon(sandbox)
        assert sandbox.instance_id is not None
        native = await self._providers.get(sandbox).open_sdk_sandbox(sandbox.instance_id)
        return await self._run_guarded(sandbox, native, ALIVE, {"SK_PLACE": PLACE}) == 0

    async def raise_fence(self, sandbox: Sandbox) -> None:
        """Refuse, from now on, the start of an app under an older claim."""
        assert sandbox.instance_id is not None
        native = await self._providers.get(sandbox).open_sdk_sandbox(sandbox.instance_id)
        await self._run_guarded(sandbox, native, ":", {})

    async def _answers_soon(self, sandbox: Sandbox) -> bool:
        for pause_s in SURVIVAL_KNOCKS_S:
            await asyncio.sleep(pause_s)
            if await self.answers(sandbox):
                return True
        return False

    async def _run(
        self, sandbox: Sandbox, native: AsyncSandbox, script: str, envs: dict[str, str]
    ) -> tuple[int, str]:
        try:
            done = await native.commands.run(
                script, envs=envs, user="user", timeout=COMMAND_TIMEOUT_S
            )
        except e2b.CommandExitException as error:
            return error.exit_code, error.stdout
        except Exception as error:
            provider = self._providers.get(sandbox)
            raise provider.translate(error, instance_id=native.sandbox_id) from error
        return done.exit_code, done.stdout
