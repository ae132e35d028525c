"""Run `sandkeeper up` with a demo fleet and restart it when a file under src changes.

Called by `make dev`. The data is in `.dev`, so your own data folder is left alone. Arguments go to
`sandkeeper up`; without any, a demo fleet of three is started.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src"
POLL_INTERVAL_S = 0.5
STOP_TIMEOUT_S = 20


def main() -> int:
    """Restart the server on each change until Ctrl-C, or until it exits by itself."""
    arguments = sys.argv[1:] or ["--demo", "3"]
    command = [str(ROOT / ".venv/bin/sandkeeper"), "up", "--data", str(ROOT / ".dev"), *arguments]
    for stopping in (signal.SIGINT, signal.SIGTERM):
        signal.signal(stopping, signal.default_int_handler)
    while True:
        seen = snapshot()
        # A session of its own: Ctrl-C reaches this script only, which then stops the server once.
        server = subprocess.Popen(command, start_new_session=True)
        try:
            changed = wait_for_change(server, seen)
        except KeyboardInterrupt:
            stop(server)
            return 0
        stop(server)
        print(f"\n== {changed} changed: restarting", flush=True)


def wait_for_change(server: subprocess.Popen[bytes], seen: dict[Path, int]) -> Path:
    """Return the first file that changed. A server that crashed is restarted by the next change."""
    has_exited = False
    while True:
        time.sleep(POLL_INTERVAL_S)
        now = snapshot()
        if now != seen:
            changed = sorted(path for path, _ in now.items() ^ seen.items())
            return changed[0].relative_to(ROOT)
        if not has_exited and server.poll() is not None:
            has_exited = True
            print("== the server exited: waiting for a change (Ctrl-C ends)", flush=True)


def snapshot() -> dict[Path, int]:
    """Return every source file with the time of its last change."""
    files: dict[Path, int] = {}
    for path in SOURCE.rglob("*"):
        if path.suffix in {".py", ".js", ".css", ".html", ".json", ".svg"}:
            try:
                files[path] = path.stat().st_mtime_ns
            except FileNotFoundError:
                continue
    return files


def stop(server: subprocess.Popen[bytes]) -> None:
    """Stop the server; its sandboxes keep running for the next start, as after any SIGTERM."""
    if server.poll() is not None:
        return
    server.send_signal(signal.SIGTERM)
    try:
        server.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()


if __name__ == "__main__":
    sys.exit(main())
