"""What `apt-get` and `dpkg` need in the base, on a host that has them.

The packages inside are those of the host, because its `/usr` is. So their database is shown from
the host, too, as a third half of the tree: the lists of files as they are, and a copy of what
`dpkg` rewrites. The host's sources and keys are copied; passwords for them, and files that have one
in an address, are not.
"""

from __future__ import annotations

import contextlib
import re
import shutil
from pathlib import Path

from sandkeeper.engine.runtime.base.halves import DATABASE

_DATABASE = Path(DATABASE)
_DATABASE_FILES = ("arch", "available", "diversions", "status")
_DATABASE_FOLDERS = ("alternatives", "info", "parts", "triggers", "updates")
_COPIED_FOLDERS = ("alternatives", "triggers")
_SETTINGS = (
    *("adduser.conf", "debconf.conf", "deluser.conf", "dpkg", "pip.conf"),
    *(f"apt/{name}" for name in ("apt.conf.d", "keyrings", "preferences", "preferences.d")),
    *(f"apt/{name}" for name in ("sources.list", "sources.list.d", "trusted.gpg", "trusted.gpg.d")),
)
FOLDERS = {
    "var/cache/apt": 0o755,
    "var/cache/apt/archives": 0o755,
    "var/cache/apt/archives/partial": 0o700,
    "var/cache/debconf": 0o755,
    "var/lib/apt": 0o755,
    "var/lib/apt/lists": 0o755,
    "var/lib/apt/lists/partial": 0o700,
    "var/log/apt": 0o755,
}
_MASTERS = Path("/usr/share/base-passwd")
_PASSWORD = re.compile(rb"://[^/\s\"]*@")
_HOOK = re.compile(rb"Invoke|Pre-Install-Pkgs|Acquire::.*::Proxy-Auto", re.IGNORECASE)
# Services are not started: there is no init.
_NO_SERVICES = "#!/bin/sh\nexit 101\n"
_REFUSAL = """\
#!/bin/sh
echo "${0##*/}: packages need more user ids than the one that this sandbox has. Ask the" \\
  "operator of the engine for subordinate ids: sudo apt-get install uidmap (see sandkeeper" \\
  "doctor), or to run it as root." >&2
exit 100
"""


def list_origins() -> list[Path]:
    """Return the host's files that decide what is made here."""
    return [path for path in (_DATABASE / "status",) if path.is_file()]


def add_packages(base: Path, *, has_range: bool) -> None:
    """Add all of it to a base; does nothing on a host without `dpkg`."""
    if not list_origins():
        return
    for name in _SETTINGS:
        copy_settings(Path("/etc", name), base / "root/etc" / name)
    _make_database(base / "dpkg")
    _add_program(base / "usr/sbin/policy-rc.d", _NO_SERVICES)
    if not has_range:
        for name in ("apt", "apt-get"):
            _add_program(base / "usr/bin" / name, _REFUSAL)


def read_master(name: str) -> str:
    """Return the users or groups (`passwd`, `group`) that every Debian has, but for root."""
    try:
        text = (_MASTERS / f"{name}.master").read_text()
    except OSError:
        return ""
    lines = (line.replace(":*:", ":x:", 1) for line in text.splitlines(keepends=True))
    return "".join(line for line in lines if not line.startswith(("root:", "sudo:")))


def _make_database(folder: Path) -> None:
    folder.mkdir()
    folder.chmod(0o755)
    for name in _DATABASE_FOLDERS:
        (folder / name).mkdir()
        (folder / name).chmod(0o755)
    for name in _COPIED_FOLDERS:
        for path in (_DATABASE / name).iterdir():
            if path.is_file():
                _copy_file(path, folder / name / path.name)
    for name in _DATABASE_FILES:
        _copy_file(_DATABASE / name, folder / name)
    # They name groups of the host that a sandbox does not have.
    (folder / "statoverride").touch()
    # They are closed on the host.
    for name in ("lock", "lock-frontend", "triggers/Lock"):
        (folder / name).touch()


def copy_settings(source: Path, target: Path) -> None:
    """Copy a file or a folder of settings, without what names a password or runs a program."""
    paths = [source]
    if source.is_dir():
        target.mkdir(parents=True)
        target.chmod(0o755)
        paths = [path for path in source.rglob("*") if path.is_file()]
    for path in paths:
        place = target / path.relative_to(source)
        with contextlib.suppress(OSError):
            content = path.read_bytes()
            is_of_apt = path.parent.name == "apt.conf.d"
            if not _PASSWORD.search(content) and not (is_of_apt and _HOOK.search(content)):
                _copy_file(path, place)


def _copy_file(source: Path, target: Path) -> None:
    # What does not exist, or may not be read by this user, is left out.
    with contextlib.suppress(OSError):
        target.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        shutil.copyfile(source, target)
        target.chmod(0o644)


def _add_program(path: Path, text: str) -> None:
    path.parent.mkdir(mode=0o755, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
