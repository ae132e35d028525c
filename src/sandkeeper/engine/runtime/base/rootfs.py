"""The instant base: what a sandbox sees when no template lies on it.

The host's `/usr` is shown as it is; all else (`/etc`, `/home`, `/var`, …) is small and private and
made here once. The halves of a disk, such as `root` for `/` and `usr` for `/usr`, are folders of
every layer.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import stat
import uuid
from pathlib import Path

from sandkeeper.engine.runtime.base import packages, programs
from sandkeeper.engine.runtime.bubblewrap.binaries import UID_BASE
from sandkeeper.engine.runtime.bubblewrap.user_database import USER_ID
from sandkeeper.engine.runtime.egress.network import NAMESERVER

_REVISION = 7
HOSTNAME = "e2b.local"
_DESKTOP = Path("/etc/xdg/xfce4")
_FOLDERS = {
    "dev": 0o755,
    "etc": 0o755,
    "home": 0o755,
    "home/user": 0o755,
    "mnt": 0o755,
    "opt": 0o755,
    "proc": 0o755,
    "root": 0o700,
    "run": 0o755,
    "srv": 0o755,
    "sys": 0o755,
    "sys/devices": 0o755,
    "sys/devices/system": 0o755,
    "sys/devices/system/cpu": 0o755,
    "tmp": 0o1777,
    "usr": 0o755,
    "var": 0o755,
    "var/cache": 0o755,
    "var/lib": 0o755,
    "var/lib/dpkg": 0o755,
    "var/log": 0o755,
    "var/spool": 0o755,
    "var/tmp": 0o1777,
    **packages.FOLDERS,
}
_TOP_LINKS = ("bin", "lib", "lib32", "lib64", "libx32", "sbin")
_PROFILE = """\
export PATH="${PATH:-/usr/local/bin:/usr/bin:/bin}"
export HOME="${HOME:-/home/user}"
if [ -n "${PS1-}" ] && [ "${BASH-}" ] && [ -r /etc/bash.bashrc ]; then . /etc/bash.bashrc; fi
"""
_FILES = {
    "etc/passwd": (
        "root:x:0:0:root:/root:/bin/bash\n"
        f"user:x:{USER_ID}:{USER_ID}::/home/user:/bin/bash\n"
        "nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n"
    ),
    "etc/group": f"root:x:0:\nsudo:x:27:user\nuser:x:{USER_ID}:\nnogroup:x:65534:\ntty:x:5:\n",
    "etc/shadow": "root:*:19000:0:99999:7:::\nuser:*:19000:0:99999:7:::\n",
    "etc/hostname": f"{HOSTNAME}\n",
    "etc/hosts": f"127.0.0.1 localhost {HOSTNAME}\n::1 localhost ip6-localhost\n",
    "etc/resolv.conf": f"nameserver {NAMESERVER}\n",
    "etc/nsswitch.conf": "passwd: files\ngroup: files\nshadow: files\nhosts: files dns\n",
    "etc/profile": _PROFILE,
    "etc/bash.bashrc": "PS1='\\u@\\h:\\w\\$ '\n",
    "etc/shells": "/bin/sh\n/bin/bash\n",
    "home/user/.profile": "",
    "home/user/.bashrc": "",
    "root/.profile": "",
    # The number of processors is put into its place when a sandbox starts.
    "sys/devices/system/cpu/online": "",
}
_DATABASES = ("etc/passwd", "etc/group")
# What programs under /usr need of the host's /etc and what tells nothing about the host.
_COPIED = (
    "R",
    "X11",
    "alternatives",
    "ca-certificates",
    "ca-certificates.conf",
    "chromium.d",
    "dbus-1",
    "debian_version",
    "firefox-esr",
    "fonts",
    "gtk-3.0",
    "inputrc",
    "java-17-openjdk",
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "localtime",
    "login.defs",
    "magic",
    "mime.types",
    "pam.d",
    "perl",
    "pki",
    "protocols",
    "python3",
    "python3.11",
    "services",
    "security",
    "skel",
    "ssl/certs",
    "ssl/openssl.cnf",
    "terminfo",
    "timezone",
    "xattr.conf",
    "xdg",
)


def ensure_base(data: Path, uid_base: int | None) -> Path:
    """Return the base's folder below `data`, making it at the first call."""
    owner = "own" if uid_base is None else str(uid_base)
    folder = data / f"base-{_REVISION}-{_fingerprint()}-{owner}"
    if folder.exists():
        return folder
    draft = data / f"base-draft-{uuid.uuid4().hex}"
    _make_root(draft / "root")
    (draft / "usr").mkdir()
    (draft / "usr").chmod(0o755)
    programs.make_programs(draft / "usr", has_range=uid_base is not None)
    packages.add_packages(draft, has_range=uid_base is not None)
    if uid_base not in {None, UID_BASE}:
        programs.add_folders(draft / "usr")
    if uid_base is not None:
        _give_away(draft, uid_base)
    try:
        draft.rename(folder)
    except OSError:
        # Another process made it first; theirs is as good as ours.
        shutil.rmtree(draft)
    return folder


def _fingerprint() -> str:
    """Return what changes when the host gets other programs that the base is made from."""
    facts = [str(_DESKTOP.is_dir())]
    for path in (*programs.list_origins(), *packages.list_origins()):
        found = path.resolve()
        facts.append(f"{path} {found} {found.stat().st_mtime_ns}")
    return hashlib.sha256("\n".join(facts).encode()).hexdigest()[:12]


def _make_root(root: Path) -> None:
    root.mkdir(parents=True, mode=0o755)
    root.chmod(0o755)
    for name, mode in _FOLDERS.items():
        (root / name).mkdir()
        (root / name).chmod(mode)
    for name in _TOP_LINKS:
        host = Path("/", name)
        if host.is_symlink():
            (root / name).symlink_to(host.readlink())
        elif host.is_dir():
            (root / name).mkdir()
    for name, text in _FILES.items():
        # The users of Debian's own packages; the first line of a name counts.
        more = packages.read_master(name.removeprefix("etc/")) if name in _DATABASES else ""
        (root / name).write_text(text + more)
        (root / name).chmod(0o640 if name == "etc/shadow" else 0o644)
    for name in _COPIED:
        _copy(Path("/etc", name), root / "etc" / name)
    (root / "etc/os-release").symlink_to("../usr/lib/os-release")
    (root / "etc/mtab").symlink_to("../proc/self/mounts")
    (root / "var/run").symlink_to("/run")
    # The session bus needs an id; the host's own stays private.
    (root / "etc/machine-id").write_text(f"{uuid.uuid4().hex}\n")
    # Where E2B's desktop has its viewer.
    (root / "opt/noVNC").symlink_to("/usr/share/novnc")
    (root / "var/lib/dpkg/status").touch()


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    # Skip parts of the host's /etc that do not exist or that this user may not read.
    with contextlib.suppress(OSError, shutil.Error):
        if source.is_dir() and not source.is_symlink():
            shutil.copytree(source, target, symlinks=True, ignore_dangling_symlinks=True)
        else:
            shutil.copy2(source, target, follow_symlinks=source.name == "localtime")


def _give_away(draft: Path, uid_base: int) -> None:
    """Change the owner of the base to the sandbox's root, and of the home folder to its user."""
    home = str(draft / "root/home/user")
    for folder, names, files in os.walk(draft):
        for path in (folder, *(f"{folder}/{name}" for name in (*names, *files))):
            inside = USER_ID if path == home or path.startswith(f"{home}/") else 0
            mode = os.lstat(path).st_mode
            os.lchown(path, uid_base + inside, uid_base + inside)
            if stat.S_ISDIR(mode) or stat.S_ISREG(mode):
                # A change of owner clears the sticky and set-id bits.
                Path(path).chmod(stat.S_IMODE(mode))
