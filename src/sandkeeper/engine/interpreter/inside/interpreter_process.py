"""One process that runs code and remembers: Python, Node or Bash behind the same three pipes.

Requests go in on one pipe, reports come out on another, and what the code prints comes out of the
process's own stdout and stderr, so that output of subprocesses is included. A report is one line of
JSON with a `type`; `done` ends an execution. Output written before a report is read before it.
"""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import fcntl
import json
import os
import re
import shlex
import signal
import subprocess
import time
from typing import TYPE_CHECKING, Any

from sandkeeper.engine.interpreter.inside.languages import list_arguments

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    Emit = Callable[[dict[str, Any]], Awaitable[None]]

OUTPUT_MAX_BYTES = 8 * 1024 * 1024
"""How much one execution may print; the rest is dropped, and a line reports that."""
RESULTS_MAX_BYTES = 64 * 1024 * 1024
_REPORT_MAX_BYTES = 32 * 1024 * 1024
_PIPE_BYTES = 1024 * 1024
_GATHER_S = 0.002  # Words printed closely together travel in one message.
_INTERRUPT_GRACE_S = 5.0
# Messages of an interactive bash about background jobs; there is no terminal user.
_JOB_NOTICE = re.compile(
    r"^\[\d+\](?: \d+|[+-]? +(?:Done|Exit|Running|Terminated|Killed|Interrupt|Stopped)\b.*)\n",
    re.MULTILINE,
)
_BASH_REPORT = 'printf \'{"type":"done","status":%d}\\n\' "$?" >&'


class _Printed:
    """One of the two streams a process prints to."""

    def __init__(self, kind: str, descriptor: int) -> None:
        self.kind = kind
        self.descriptor = descriptor
        self.is_over = False
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def read(self) -> str:
        """Return what is there now. A process that prints faster than this is not waited for."""
        data, self.is_over = _read_available(self.descriptor, 2 * _PIPE_BYTES)
        return self._decoder.decode(data)


class InterpreterProcess:
    """A running process. When it ends, it stays ended: its context makes a new one."""

    def __init__(
        self, language: str, cwd: str, env: Mapping[str, str], texts: Mapping[str, str]
    ) -> None:
        self._language = language
        self._loop = asyncio.get_running_loop()
        self._ready = asyncio.Event()
        self._is_executing = False
        self._tail = b""
        self.is_ended = False
        self._process: subprocess.Popen[bytes]
        self._start(cwd, env, texts)
        self._watch()

    def _start(self, cwd: str, env: Mapping[str, str], texts: Mapping[str, str]) -> None:
        ends = [os.pipe2(os.O_CLOEXEC) for _ in range(4)]
        (request_end, requests), (reports, report_end), (out, out_end), (err, err_end) = ends
        try:
            argv = list_arguments(self._language, texts, request_end, report_end)
            is_bash = self._language == "bash"
            self._process = subprocess.Popen(
                argv,
                cwd=cwd,
                env=env,
                stdin=request_end if is_bash else subprocess.DEVNULL,
                stdout=out_end,
                stderr=err_end,
                pass_fds=(report_end,) if is_bash else (request_end, report_end),
                start_new_session=True,
            )
        except BaseException:
            for descriptor in (requests, reports, out, err):
                os.close(descriptor)
            raise
        finally:
            for descriptor in (request_end, report_end, out_end, err_end):
                os.close(descriptor)
        self._report_number = report_end
        self._requests, self._reports = requests, reports
        self._printed = (_Printed("stdout", out), _Printed("stderr", err))
        for descriptor in (requests, reports, out, err):
            os.set_blocking(descriptor, False)
        for descriptor in (out, err):
            with contextlib.suppress(OSError):  # A smaller pipe is only slower.
                fcntl.fcntl(descriptor, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)

    async def execute(
        self, code: str, env: Mapping[str, str], emit: Emit, *, number: int = 0
    ) -> None:
        """Run code and hand over what comes of it. Leaving early interrupts the code.

        `number` is what its traceback calls it. `emit` may be slow: as long as it is, nothing is
        read, and the code waits when it prints.
        """
        self._is_executing = True
        allowance = _Allowance()
        is_done = False
        try:
            self._drop_printed()
            await self._send(code, env, number)
            while not is_done:
                is_done = await self._pass_on(allowance, emit)
        finally:
            if not is_done and not self.is_ended:
                await self._stop_code()
            self._is_executing = False
            self._watch()

    async def _pass_on(self, allowance: _Allowance, emit: Emit) -> bool:
        """Wait for the next news and hand it over; True when the execution is over."""
        self._watch()
        await self._ready.wait()
        self._ready.clear()
        reports = self._read_reports()
        if not reports and not self.is_ended:
            await asyncio.sleep(_GATHER_S)
            reports = self._read_reports()
        for stream in self._printed:
            read = stream.read()
            if self._language == "bash" and stream.kind == "stderr":
                read = _JOB_NOTICE.sub("", read)
            for text in allowance.cut(read):
                await emit({"type": stream.kind, "text": text, "timestamp": time.time_ns()})
        for report in reports:
            if report.get("type") == "done":
                for message in _judge(report):
                    await emit(message)
                return True
            if (kept := allowance.limit(report)) is not None:
                await emit(kept)
        if self.is_ended:
            await emit(self._describe_exit())
        return self.is_ended

    def interrupt(self) -> None:
        """Do what Ctrl-C does, to the code and to what it started."""
        self._signal(signal.SIGINT)

    def end(self) -> None:
        """End the process and all of its group. May be called twice."""
        if self.is_ended:
            return
        self.is_ended = True
        self._unwatch()
        self._signal(signal.SIGKILL)
        self._process.wait()
        self._ready.set()

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)

    def close(self) -> None:
        """End it and give its descriptors back."""
        self.end()
        if self._requests >= 0:
            printed = (stream.descriptor for stream in self._printed)
            for descriptor in (self._requests, self._reports, *printed):
                os.close(descriptor)
            self._requests = -1

    async def _stop_code(self) -> None:
        """Interrupt the code and wait until it stops; kill it if it does not."""
        deadline = self._loop.time() + _INTERRUPT_GRACE_S
        self.interrupt()
        while not self.is_ended:
            self._watch()
            waiting = asyncio.ensure_future(self._ready.wait())
            await asyncio.wait({waiting}, timeout=max(0, deadline - self._loop.time()))
            waiting.cancel()
            if self._loop.time() >= deadline:
                self.end()
                return
            self._ready.clear()
            reports = self._read_reports()
            self._drop_printed()
            if any(report.get("type") == "done" for report in reports):
                return

    async def _send(self, code: str, env: Mapping[str, str], number: int) -> None:
        if self._language == "bash":
            pending = _bash_lines(code, env, self._report_number)
        else:
            request = {
                "code": code,
                "env": dict(env),
                "language": self._language,
                "number": number,
            }
            pending = json.dumps(request).encode() + b"\n"
        while pending and not self.is_ended:
            try:
                pending = pending[os.write(self._requests, pending) :]
            except BlockingIOError:
                await asyncio.sleep(_GATHER_S)
            except BrokenPipeError:
                return  # It has just ended, which its reports' end tells.

    def _read_reports(self) -> list[dict[str, Any]]:
        """Return the complete reports that are there now; notices the process's end."""
        if self.is_ended:
            return []
        data, is_over = _read_available(self._reports, _REPORT_MAX_BYTES)
        *lines, self._tail = (self._tail + data).split(b"\n")
        if is_over or len(self._tail) > _REPORT_MAX_BYTES:
            self.end()
        found = []
        for line in lines:
            with contextlib.suppress(ValueError):
                report = json.loads(line)
                if isinstance(report, dict):
                    found.append(report)
        return found

    def _describe_exit(self) -> dict[str, Any]:
        code = self._process.returncode
        how = f"exit code {code}" if code >= 0 else f"signal {-code}"
        text = f"the process that ran the code ended ({how}); the next call starts a new one"
        return {"type": "error", "name": "ProcessEnded", "value": text, "traceback": text}

    def _drop_printed(self) -> None:
        for stream in self._printed:
            stream.read()

    def _on_news(self) -> None:
        if self._is_executing:
            self._unwatch()  # Until it is read: a slow reader slows the code down.
            self._ready.set()
        else:
            # No execution is active: output of background jobs is dropped, but must not block.
            self._unwatch()
            self._drop_printed()
            self._read_reports()
            self._watch()

    def _sources(self) -> tuple[int, ...]:
        # A stream that the code closed would be readable for ever.
        return (self._reports, *(it.descriptor for it in self._printed if not it.is_over))

    def _watch(self) -> None:
        if not self.is_ended:
            for descriptor in self._sources():
                self._loop.add_reader(descriptor, self._on_news)

    def _unwatch(self) -> None:
        for descriptor in self._sources():
            self._loop.remove_reader(descriptor)


class _Allowance:
    """What one execution may still hand over."""

    def __init__(self) -> None:
        self._printed_left = OUTPUT_MAX_BYTES
        self._results_left = RESULTS_MAX_BYTES

    def cut(self, text: str) -> list[str]:
        """Return what may be passed on of a text, with a line about the rest where it is cut."""
        if not text or self._printed_left <= 0:
            return []
        kept = text[: self._printed_left]
        self._printed_left -= len(text)
        if self._printed_left > 0:
            return [kept]
        size = OUTPUT_MAX_BYTES // (1024 * 1024)
        return [kept, f"\n[the rest is left out: more than {size} MB were printed]\n"]

    def limit(self, report: dict[str, Any]) -> dict[str, Any] | None:
        """Return a report as it may be passed on, None when there were too many."""
        if report.get("type") != "result":
            return report
        if self._results_left <= 0:
            return None
        self._results_left -= sum(len(v) for v in report.values() if isinstance(v, str))
        if self._results_left > 0:
            return report
        size = RESULTS_MAX_BYTES // (1024 * 1024)
        return {"type": "result", "text": f"[the rest is left out: results of more than {size} MB]"}


def _judge(done: dict[str, Any]) -> list[dict[str, Any]]:
    """Return a failed shell line's status as an error like those of other languages."""
    status = done.get("status", 0)
    if not status:
        return []
    text = f"the last command ended with exit code {status}"
    return [{"type": "error", "name": "ExitCode", "value": str(status), "traceback": text}]


def _bash_lines(code: str, env: Mapping[str, str], reports: int) -> bytes:
    """Make the lines that an interactive bash reads: the code as one `eval`, then the report.

    An interrupt throws bash back to reading, so the second line runs in any case. A variable given
    for this call alone is put back by the third.
    """
    close = f"</dev/null {reports}>&-"
    before = after = ""
    for name, value in env.items():
        old = f"__old_{name}"  # Empty if it did not exist, else it begins with a mark.
        before += f'{old}="${{{name}+=${name}}}"; export {name}={shlex.quote(value)}; '
        after += f'[ -z "${old}" ] && unset {name} || export {name}="${{{old}#=}}"; unset {old}; '
    lines = (
        "set +mH; PS1=; PS2=; PROMPT_COMMAND=",
        before + ":",
        f"eval {shlex.quote(code)} {close}",
        f"{_BASH_REPORT}{reports}",
        after + ":",
    )
    return ("\n".join(lines) + "\n").replace("\0", "").encode("utf-8", "replace")


def _read_available(descriptor: int, most: int) -> tuple[bytes, bool]:
    """Read without blocking, up to about `most`; return True at the end of the stream."""
    pieces: list[bytes] = []
    size = 0
    while size < most:
        try:
            data = os.read(descriptor, 256 * 1024)
        except BlockingIOError:
            return b"".join(pieces), False
        if not data:
            return b"".join(pieces), True
        pieces.append(data)
        size += len(data)
    return b"".join(pieces), False
