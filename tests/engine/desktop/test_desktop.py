"""Desktop sandboxes, through the official SDK as it is."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from e2b import SandboxException
from e2b_desktop import Sandbox
from websockets.sync.client import connect

from sandkeeper.engine.templates import desktop
from support.engine_process import Engine
from support.eventually import eventually_sync

MISSING = desktop.find_missing()
DOCUMENT = Path(__file__).parents[3] / "docs" / "desktop.md"
needs_desktop = pytest.mark.skipif(
    bool(MISSING), reason=f"`make desktop` was not run: {', '.join(MISSING)} missing"
)


@pytest.fixture(scope="module")
def box(engine: Engine) -> Iterator[Sandbox]:
    sandbox = Sandbox.create(resolution=(1024, 768), timeout=3600, **engine.sdk_options())
    yield sandbox
    sandbox.kill()


@pytest.mark.skipif(not MISSING, reason="the desktop's packages are installed here")
def test_without_its_packages_a_desktop_is_refused_in_one_line(engine: Engine) -> None:
    with pytest.raises(SandboxException, match=r"no desktop: .* missing; `make desktop` installs"):
        Sandbox.create(timeout=60, **engine.sdk_options())


def test_doctor_says_whether_there_is_a_desktop() -> None:
    said = subprocess.run(
        [sys.executable, "-m", "sandkeeper.cli.main", "doctor"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert "desktop: " in said.stdout
    assert ("make desktop" in said.stdout) == bool(MISSING)


@needs_desktop
def test_the_screen_can_be_seen_and_the_mouse_moved(box: Sandbox) -> None:
    box.move_mouse(321, 123)

    assert box.get_cursor_position() == (321, 123)
    assert box.get_screen_size() == (1024, 768)
    assert bytes(box.screenshot()).startswith(b"\x89PNG")


@needs_desktop
def test_keys_arrive_in_a_window(box: Sandbox) -> None:
    box.commands.run("xev -event keyboard > /tmp/keys 2>&1", background=True, timeout=0)

    def find_windows() -> list[str]:
        found = box.commands.run("xdotool search --name '^Event Tester$' || true")
        return found.stdout.split()

    windows = eventually_sync(find_windows, within_s=60)
    box.commands.run(f"xdotool windowfocus --sync {windows[0]}")

    box.press("enter")
    box.write("k")

    def are_there() -> bool:
        seen = str(box.files.read("/tmp/keys"))
        return "Return)" in seen and ", k)" in seen

    assert eventually_sync(are_there)


@needs_desktop
def test_the_screen_is_streamed_and_the_stream_stops(engine: Engine, box: Sandbox) -> None:
    headers = {"E2b-Sandbox-Id": box.sandbox_id, "E2b-Sandbox-Port": "6080"}

    box.stream.start(require_auth=True)

    assert f"6080-{box.sandbox_id}." in box.stream.get_url(auth_key=box.stream.get_auth_key())
    page = httpx.get(f"{engine.url}/vnc.html", headers=headers, timeout=60)
    assert (page.status_code, "noVNC" in page.text) == (200, True)
    with connect(
        f"ws://127.0.0.1:{engine.port}/websockify",
        additional_headers=headers,
        subprotocols=["binary"],  # type: ignore[list-item]  # a NewType of str
    ) as socket:
        assert socket.recv(timeout=60) == b"RFB 003.008\n"
    box.stream.stop()
    assert box.commands.run("pgrep -x x11vnc || echo none").stdout == "none\n"


@needs_desktop
def test_the_program_in_the_documentation_runs_as_written(engine: Engine, tmp_path: Path) -> None:
    program = DOCUMENT.read_text().partition("```python\n")[2].partition("```")[0]
    (tmp_path / "program.py").write_text(program)

    ran = subprocess.run(
        [sys.executable, "program.py"],
        cwd=tmp_path,
        env=engine.env,
        capture_output=True,
        text=True,
        timeout=170,
        check=False,
    )

    assert ran.returncode == 0, ran.stderr
    assert (tmp_path / "screen.png").read_bytes().startswith(b"\x89PNG")
    assert "vnc.html" in ran.stdout
