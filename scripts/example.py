"""Start an example with a keeper of its own, and print where it is: `make example NAME=next`.

With `SANDKEEPER_URL` and `SANDKEEPER_OPERATOR_KEY` the keeper is that one; it must allow the page's
origin then. Ctrl-C ends everything that was started.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from sandkeeper.client import Sandkeeper

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"
SHOP = "echo '<h1>The shop</h1>' > index.html; exec python3 -m http.server 3000"
COMMANDS = {
    "plain": [sys.executable, "server.py"],
    "fastapi": [sys.executable, "main.py"],
    "express": ["npm", "run", "--silent", "dev"],
    "vite-react": ["npm", "run", "--silent", "dev"],
    "next": ["npm", "run", "--silent", "dev"],
}
AGENTS_PYTHON = ROOT / ".venv" / "agents"
AGENTS = {
    "openai-agents": "python/with_openai_agents.py",
    "deepagents": "python/with_deepagents.py",
    "smolagents": "python/with_smolagents.py",
    "pydantic-ai": "python/with_pydantic_ai.py",
    "vercel-ai": "typescript/with-vercel-ai.mjs",
    "mastra": "typescript/with-mastra.mjs",
}
"""Programs that end on their own: agents with a scripted model."""
START_WITHIN_S = 300


def main() -> None:
    """Run the named example until it ends or Ctrl-C."""
    name = sys.argv[1] if len(sys.argv) == 2 else ""
    if name not in {*COMMANDS, *AGENTS}:
        sys.exit(f"name one example: {', '.join([*COMMANDS, *AGENTS])}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    port = int(os.environ.get("PORT") or find_free_port())
    with ExitStack() as stack:
        keeper = {
            name: os.environ[name]
            for name in ("SANDKEEPER_URL", "SANDKEEPER_OPERATOR_KEY")
            if name in os.environ
        } or stack.enter_context(keeper_for(port))
        if name in AGENTS:
            sys.exit(run_agent(EXAMPLES / "agents" / AGENTS[name], keeper))
        folder = EXAMPLES / name
        install(folder)
        with Sandkeeper(keeper["SANDKEEPER_URL"], keeper["SANDKEEPER_OPERATOR_KEY"]) as client:
            client.project("shop").create(port=3000, start_command=SHOP)
        environment = {**os.environ, **keeper, "PORT": str(port), "NEXT_TELEMETRY_DISABLED": "1"}
        example = stack.enter_context(running(COMMANDS[name], folder, environment))
        url = f"http://localhost:{port}"
        wait_for(url, example)
        print(f"open {url} (Ctrl-C ends it)", flush=True)
        sys.exit(example.wait())


def run_agent(program: Path, keeper: dict[str, str]) -> int:
    """Install what the agent's program needs, run it, and return its exit code."""
    if program.suffix == ".py":
        subprocess.run([ROOT / "scripts" / "agents"], check=True)
        line = [str(AGENTS_PYTHON / "bin" / "python"), program.name]
    else:
        install(program.parent)
        line = ["node", program.name]
    environment = {**os.environ, **keeper}
    return subprocess.run(line, cwd=program.parent, env=environment, check=False).returncode


@contextmanager
def keeper_for(port: int) -> Iterator[dict[str, str]]:
    """Run a keeper that allows the page's origin; give the variables that name it."""
    data = Path(os.environ.get("SANDKEEPER_DATA") or ROOT / ".dev" / "examples")
    own_port = find_free_port()
    origins = f"http://localhost:{port},http://127.0.0.1:{port}"
    environment = {**os.environ, "SANDKEEPER_ALLOWED_ORIGINS": origins}
    line = [sys.executable, "-m", "sandkeeper.cli.main", "up", "--data", str(data)]
    line += ["--port", str(own_port), "--engine-port", "0"]
    url = f"http://127.0.0.1:{own_port}"
    with running(line, ROOT, environment, quiet=True) as process:
        wait_for(f"{url}/readyz", process)
        key = (data / "operator.key").read_text().strip()
        yield {"SANDKEEPER_URL": url, "SANDKEEPER_OPERATOR_KEY": key}


def install(folder: Path) -> None:
    """Install the packages of a JavaScript example, as its lock file says."""
    if not (folder / "package.json").exists():
        return
    if shutil.which("npm") is None:
        sys.exit("this example needs Node.js 20 or newer and npm")
    # Copied again each time: the package is part of this repository and changes with it.
    shutil.rmtree(folder / "node_modules" / "sandkeeper", ignore_errors=True)
    line = ["npm", "install", "--silent", "--no-audit", "--no-fund", "--no-save"]
    subprocess.run(line, cwd=folder, check=True)


@contextmanager
def running(
    line: list[str], folder: Path, environment: dict[str, str], *, quiet: bool = False
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a program in a group of its own, and end the whole group afterwards."""
    output = subprocess.DEVNULL if quiet else None
    process = subprocess.Popen(
        line, cwd=folder, env=environment, stdout=output, start_new_session=True
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGTERM)
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def wait_for(url: str, process: subprocess.Popen[bytes]) -> None:
    """Wait until the server answers."""
    deadline = time.monotonic() + START_WITHIN_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            sys.exit(f"{process.args!r} ended with {process.returncode}")
        try:
            urllib.request.urlopen(url, timeout=60).close()
        except (urllib.error.URLError, OSError):
            time.sleep(0.2)
        else:
            return
    sys.exit(f"{url} did not answer within {START_WITHIN_S} s")


def find_free_port() -> int:
    """Return a port that is free now."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


if __name__ == "__main__":
    main()
