"""Start a built image as an engine would: its user, a read-only root, its own network.

Called by `scripts/image` in namespaces of its own, with the image's root and its description.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

START_WITHIN_S = 90
WRITABLE = ("tmp", "data")


def main(root: Path, config: dict[str, Any]) -> None:
    user, group = map(int, config["User"].split(":"))
    mount(root, user, group)
    variables = dict(one.split("=", 1) for one in config["Env"])
    variables |= {"E2B_API_KEY": "none", "E2B_API_URL": "http://127.0.0.1:9"}

    inside = ["/usr/sbin/chroot", f"--userspec={user}:{group}", "--groups=", str(root)]

    def run(*words: str) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run([*inside, *words], env=variables, capture_output=True, check=False)

    for folder in ("/opt/sandkeeper", "/etc", "/"):
        if run("touch", f"{folder}/probe").returncode == 0:
            raise SystemExit(f"{folder} can be written")
    print("its root cannot be written")
    words = [*config["Entrypoint"], *config["Cmd"]]
    keeper = subprocess.Popen([*inside, *words], env=variables)
    deadline = time.monotonic() + START_WITHIN_S
    check = config["Healthcheck"]["Test"][1:]
    while run(*check).returncode:
        if keeper.poll() is not None or time.monotonic() > deadline:
            raise SystemExit("the image did not become healthy")
        time.sleep(0.2)
    print("it runs, and its health check succeeds")
    began = time.monotonic()
    keeper.terminate()
    code = keeper.wait(30)
    if code:
        raise SystemExit(f"it ended with {code}")
    print(f"it stopped in {time.monotonic() - began:.1f} s")


def mount(root: Path, user: int, group: int) -> None:
    """Mount what a container engine mounts; all of it ends with the namespace."""
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    subprocess.run(["mount", "--make-rprivate", "/"], check=True)
    subprocess.run(["mount", "--bind", root, root], check=True)
    subprocess.run(["mount", "-o", "remount,bind,ro", root], check=True)
    owner = f"mode=700,uid={user},gid={group}"
    for folder in WRITABLE:
        subprocess.run(["mount", "-t", "tmpfs", "-o", owner, "tmpfs", root / folder], check=True)
    subprocess.run(["mount", "-t", "proc", "proc", root / "proc"], check=True)
    subprocess.run(["mount", "--bind", "/dev", root / "dev"], check=True)


if __name__ == "__main__":
    described = json.loads(Path(sys.argv[2]).read_text())
    main(Path(sys.argv[1]), described["Docker"]["config"])
