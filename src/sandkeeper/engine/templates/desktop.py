"""Checks whether this machine can show a desktop in a sandbox.

A desktop sandbox is a plain one whose programs lie in the machine's own `/usr`; the official SDK
starts them by command. So this module only checks for them, and refuses early and clearly
if they are missing.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from sandkeeper.engine.errors import BadRequestError
from sandkeeper.engine.runtime.contract import Capability

SERVICE = "desktop"
_FOLDERS = "/usr/local/bin:/usr/bin:/usr/sbin"
_PROGRAMS = (
    "Xvfb",
    "gtk-launch",
    "netstat",
    "pgrep",
    "scrot",
    "startxfce4",
    "websockify",
    "x11vnc",
    "xdotool",
    "xdpyinfo",
    "xrandr",
)
_BROWSERS = ("firefox-esr", "firefox", "chromium", "google-chrome")
_VIEWER = Path("/usr/share/novnc")


def find_missing() -> list[str]:
    """Name what a desktop needs and this machine does not have."""
    missing = [name for name in _PROGRAMS if shutil.which(name, path=_FOLDERS) is None]
    if not _VIEWER.is_dir():
        missing.append("novnc")
    if not any(shutil.which(name, path=_FOLDERS) for name in _BROWSERS):
        missing.append("a browser")
    return missing


def check(services: tuple[str, ...]) -> None:
    """Refuse a sandbox that should have a desktop where it cannot. Raises InvalidRequestError."""
    if SERVICE in services and (missing := find_missing()):
        raise BadRequestError(
            f"this machine has no desktop: {', '.join(missing)} missing; "
            "`make desktop` installs what is needed"
        )


def check_desktop() -> Capability:
    """Report to `doctor`. A desktop is optional: without one nothing is wrong."""
    missing = find_missing()
    if not missing:
        return Capability("desktop", ok=True, finding="the template 'desktop' can be used")
    finding = (
        f"not installed ({', '.join(missing)} missing), so the template 'desktop' is refused; "
        "`make desktop` installs it"
    )
    return Capability("desktop", ok=True, finding=finding)
