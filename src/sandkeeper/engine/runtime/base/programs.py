"""The programs of the base: what the host's `/usr` lacks to be used as E2B's base is.

There is a `python`, `pip` may install, `/usr/local` is open to every user as it is there, and there
is a `sudo`. That is a script around a set-uid copy of the host's `setpriv`. Its root is the one of
the sandbox, as that of commands which are started as root: it has no right outside. Where only one
id is mapped, there is nothing to switch to, and the script runs the command as it is. And there is
a `df` that tells the sandbox's limit.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import stat
import subprocess
from importlib import resources
from pathlib import Path

_EXPECTED = ("python3", "pip3", "node", "npm", "git", "curl")
PACKAGES = {"pip3": "python3-pip", "node": "nodejs"}
"""Those of Debian that are not called like their program."""
_NOT_SHARED = ("include", "local", "src", "share/doc", "node_modules", "dist-packages")
_DEPTH_MAX = 5
_LOCAL_FOLDERS = ("bin", "etc", "include", "lib", "lib/node_modules", "sbin", "share", "src")
_PROGRAM_FOLDERS = "/usr/local/bin:/usr/bin"
_BROWSERS = ("chromium", "firefox-esr", "firefox")
_NPMRC = "prefix=/usr/local\n"
_ASK_SITES = (
    "import json, site, sysconfig;"
    "names = ('purelib', 'platlib');"
    "print(json.dumps([*map(sysconfig.get_path, names), *site.getsitepackages()]))"
)
_SUDO_HELPER = "libexec/sandkeeper/setpriv"
DISK_FILE = "libexec/sandkeeper/disk"
"""What `df` reads: the sandbox's limit and what it uses of that."""


def list_origins() -> list[Path]:
    """Return the host's files that decide what is made here."""
    found = (_find(name) for name in ("python3", "pip3", "setpriv", *_BROWSERS))
    return [Path(one) for one in found if one is not None]


def list_expected() -> tuple[list[str], list[str]]:
    """Return the programs of E2B's base that the host has, and those that it lacks."""
    there = [name for name in _EXPECTED if _find(name)]
    return there, [name for name in _EXPECTED if name not in there]


def make_programs(usr: Path, *, has_range: bool) -> None:
    """Add all of it to the base's half for `/usr`."""
    for folder in _LOCAL_FOLDERS:
        # Every user may install there, as in E2B's base.
        _make_folders(usr, f"local/{folder}", 0o777)
    _add_python(usr)
    # Where the packages of Node install to; the host's own file may name its secrets.
    _add_file(usr, "etc/npmrc", _NPMRC.encode(), 0o644)
    _add_file(usr, "bin/sudo", _read_program("sudo.sh"), 0o755)
    _add_df(usr)
    _add_browser(usr)
    setpriv = _find("setpriv")
    if has_range and setpriv is not None:
        _add_file(usr, _SUDO_HELPER, Path(setpriv).read_bytes(), 0o4755)


def add_folders(usr: Path) -> None:
    """Make the folders of the host's `/usr` in the base, where the host's have no owner inside.

    The sandbox's root may then add files to them. Those that packages do not share are left out.
    """
    for folder, names, _files in os.walk("/usr"):
        below = Path(folder).relative_to("/usr")
        is_left_out = str(below) in _NOT_SHARED or len(below.parts) >= _DEPTH_MAX
        names[:] = [] if is_left_out or below.name in _NOT_SHARED else names
        _make_folders(usr, str(below))


def _make_folders(usr: Path, name: str, mode: int = 0o755) -> None:
    folder = usr
    for part in Path(name).parts:
        folder /= part
        if not folder.is_dir():
            folder.mkdir()
            folder.chmod(mode)


def _add_file(usr: Path, name: str, content: bytes, mode: int) -> None:
    _make_folders(usr, str(Path(name).parent))
    (usr / name).write_bytes(content)
    (usr / name).chmod(mode)


def _add_python(usr: Path) -> None:
    python = _find("python3")
    if python is None:
        return
    for name in ("python", "pip"):
        versioned = _find(f"{name}3")
        if versioned is not None and _find(name) is None:
            (usr / "local/bin" / name).symlink_to(versioned)
    said = subprocess.run(
        [python, "-I", "-c", _ASK_SITES], capture_output=True, text=True, check=False
    )
    if said.returncode == 0:
        for site in json.loads(said.stdout):
            # A running interpreter finds new packages only in folders that were there at its start.
            if site.startswith("/usr/local/"):
                _make_folders(usr, site.removeprefix("/usr/"), 0o777)
    for marker in Path("/usr").glob("l*/python3*/EXTERNALLY-MANAGED"):
        # The mark protects the host's packages, and a sandbox cannot change those.
        _hide(usr, marker)


def _add_browser(usr: Path) -> None:
    """Let E2B's name for its browser, google-chrome, start the one that the host has."""
    browser = next((one for one in _BROWSERS if _find(one)), None)
    if browser is None or _find("google-chrome"):
        return
    # A browser's own sandbox needs namespaces, which no process of ours may make.
    options = " --no-sandbox" if browser == "chromium" else ""
    script = f'#!/bin/sh\nexec {browser}{options} "$@"\n'
    _add_file(usr, "local/bin/google-chrome", script.encode(), 0o755)
    (usr / "local/bin/google-chrome-stable").symlink_to("google-chrome")
    entry = (
        "[Desktop Entry]\nType=Application\nName=Google Chrome\nExec=google-chrome %U\n"
        "MimeType=text/html;x-scheme-handler/http;x-scheme-handler/https;\n"
    )
    _make_folders(usr, "local/share/applications", 0o777)
    _add_file(usr, "local/share/applications/google-chrome.desktop", entry.encode(), 0o644)


def _add_df(usr: Path) -> None:
    """Add a `df` for the sandbox's disk, in front of the host's, which it asks."""
    if _find("df") == "/usr/bin/df" and _find("python3") == "/usr/bin/python3":
        _add_file(usr, "local/bin/df", _read_program("df.py"), 0o755)
        # The numbers are put into its place when a sandbox starts.
        _add_file(usr, DISK_FILE, b"", 0o644)


def _read_program(name: str) -> bytes:
    return resources.files(__package__).joinpath(name).read_bytes()


def _hide(usr: Path, path: Path) -> None:
    """Put into the layer what makes the overlay show nothing in a file's place."""
    hidden = usr / path.relative_to("/usr")
    _make_folders(usr, str(path.parent.relative_to("/usr")))
    # Kernels before 5.8 let only root make it.
    with contextlib.suppress(PermissionError):
        os.mknod(hidden, stat.S_IFCHR | 0o600, os.makedev(0, 0))


def _find(name: str) -> str | None:
    return shutil.which(name, path=_PROGRAM_FOLDERS)
