"""The live view of a desktop session: x11vnc shows the screen, noVNC brings it to a browser.

Commands inside the sandbox do all the work, and all state of a stream is stored there too. So a
stream is the same for every replica, sleeps and ends with its sandbox, and a lock inside the
sandbox allows one start however many callers ask. The ports differ from those of the official
desktop SDK, so that neither disturbs the other. A viewer needs the password. It is created with
the stream and is part of the address's fragment, which no server on the way logs.
"""

from __future__ import annotations

import asyncio
import secrets
from dataclasses import dataclass

import structlog

from sandkeeper.domain.errors import NotADesktopSessionError, StreamNotReadyError, WrongStateError
from sandkeeper.domain.sandbox import Sandbox
from sandkeeper.domain.sessions.session import SessionKind
from sandkeeper.domain.states import State
from sandkeeper.services.deps import Deps
from sandkeeper.services.sessions import desktop_display
from sandkeeper.services.sessions.sdk_handles import SdkHandleCache
from sandkeeper.services.sessions.sessions import Sessions

log = structlog.get_logger(__name__)

PORT = 6081
# How often a starting stream is polled, and how long one command inside may take.
POLL_INTERVAL_S = 0.15
COMMAND_S = 15.0

_PREPARE = """
folder=/tmp/.sandkeeper-stream
mkdir -p -m 700 $folder && cd $folder || exit 1
exec 9>lock; flock 9
leader=$(cat leader 2>/dev/null)
lives() {
  [ -n "$leader" ] && [ "$(tr '\\0' ' ' 2>/dev/null </proc/$leader/cmdline)" = "bash lead " ]
}
"""
# The leader waits for the screen, which is started if it is missing, and ends with whichever of the
# two servers ends first: a stream is complete or absent.
_LEAD = f"""
export DISPLAY=${{DISPLAY:-:0}}
{desktop_display.START}
x11vnc -display $DISPLAY -forever -shared -wait 50 -localhost -rfbport 5901 -passwdfile password &
screen=$!
(cd /opt/noVNC/utils && ./novnc_proxy --vnc 127.0.0.1:5901 --listen 6081 --web /opt/noVNC) &
wait -n $screen $!
kill -- -$$
"""
START = f"""{_PREPARE}
if ! lives; then
  (umask 077; printf '%s' "$STREAM_PASSWORD" > password; cat > lead <<'END'
{_LEAD}
END
  )
  setsid bash lead >log 2>&1 </dev/null 9>&- &
  echo $! > leader
fi
"""
LOOK = f"""{_PREPARE}
listens() {{ netstat -tln | grep -q ":$1 "; }}
if lives && listens 5901 && listens 6081; then cat password; fi
"""
STOP = f"""{_PREPARE}
if lives; then
  kill -- -"$leader"
  for _ in $(seq 50); do pgrep -g "$leader" >/dev/null || break; sleep 0.1; done
  kill -9 -- -"$leader" 2>/dev/null || true
fi
rm -f leader password
"""


@dataclass(frozen=True, slots=True)
class DesktopStream:
    """The address where a desktop can be watched and used; None while it is not streamed."""

    url: str | None


class DesktopStreams:
    """Start, show and stop live views."""

    def __init__(self, deps: Deps, sessions: Sessions, natives: SdkHandleCache) -> None:
        self._store = deps.store
        self._sessions = sessions
        self._natives = natives
        self._providers = deps.providers
        self._ready_timeout_s = deps.settings.stream_ready_timeout_ms / 1000

    async def start(self, session_id: str) -> DesktopStream:
        """Return the live view, started if it is absent; this counts as use of the session.

        Raise StreamNotReadyError if it cannot be watched in time. It continues to start, and
        another call finds the result.
        """
        sandbox = await self._find(session_id)
        if sandbox is None or sandbox.state is not State.RUNNING:
            raise WrongStateError(
                "The session's sandbox does not run; acquire the session first.",
                state=None if sandbox is None else sandbox.state.value,
            )
        await self._sessions.touch(session_id)
        try:
            async with asyncio.timeout(self._ready_timeout_s):
                await self._run(sandbox, START, STREAM_PASSWORD=secrets.token_urlsafe(6))
                stream = await self._await_ready(sandbox)
        except TimeoutError:
            raise StreamNotReadyError(session_id=session_id, retry_after_s=1) from None
        log.info("stream_started", session_id=session_id, sandbox_id=sandbox.id)
        return stream

    async def show(self, session_id: str) -> DesktopStream:
        """Return the live view as it is. Start and wake nothing; this is no use of the session."""
        sandbox = await self._find(session_id)
        if sandbox is None or sandbox.state is not State.RUNNING:
            return DesktopStream(None)
        return await self._read_stream(sandbox)

    async def stop(self, session_id: str) -> None:
        """End the live view; the screen continues to run. An absent live view is no error."""
        sandbox = await self._find(session_id)
        if sandbox is not None and sandbox.state is State.RUNNING:
            await self._run(sandbox, STOP)

    async def _find(self, session_id: str) -> Sandbox | None:
        session = await self._sessions.get(session_id)
        if session.kind is not SessionKind.DESKTOP:
            raise NotADesktopSessionError(kind=session.kind.value, session_id=session_id)
        return await self._store.sandboxes.find_by_owner(session.owner)

    async def _await_ready(self, sandbox: Sandbox) -> DesktopStream:
        while True:
            stream = await self._read_stream(sandbox)
            if stream.url is not None:
                return stream
            await asyncio.sleep(POLL_INTERVAL_S)

    async def _read_stream(self, sandbox: Sandbox) -> DesktopStream:
        password = (await self._run(sandbox, LOOK)).strip()
        provider, instance_id = self._providers.get(sandbox), str(sandbox.instance_id)
        if not password or not await provider.probe_port(instance_id, PORT):
            return DesktopStream(None)
        page = f"{provider.preview_url(instance_id, PORT)}/vnc.html"
        return DesktopStream(f"{page}?autoconnect=true&resize=scale#&password={password}")

    async def _run(self, sandbox: Sandbox, script: str, **env: str) -> str:
        native = await self._natives.open(sandbox)
        try:
            return await native.run(script, timeout_s=COMMAND_S, env=env)
        except Exception as error:
            self._natives.forget(sandbox.instance_id)
            provider = self._providers.get(sandbox)
            raise provider.translate(error, instance_id=str(sandbox.instance_id)) from error
