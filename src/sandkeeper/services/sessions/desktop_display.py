"""The screen of a desktop: Xvfb with an XFCE session on it, as the official SDK starts them.

Commands inside the sandbox start it once, however many callers ask, and it outlives them. It sleeps
and wakes with the sandbox. If the sandbox came back without its memory, or the screen ended, the
next use starts it again.
"""

from __future__ import annotations

from typing import Final

ENV: Final = {"DISPLAY": ":0"}
"""The environment that every command of a desktop sandbox needs to find its screen."""

STARTING: Final = "screen-is-starting"

_LOCK: Final = "/tmp/.sandkeeper-screen"  # noqa: S108  # Inside the sandbox, which has one user.
_RUN: Final = r"""
export DISPLAY=${DISPLAY:-:0}
if ! pgrep -x Xvfb >/dev/null; then
  setsid Xvfb $DISPLAY -ac -screen 0 1024x768x24 -retro -dpi 96 -nolisten tcp -nolisten unix \
    >/dev/null 2>&1 </dev/null &
fi
for _ in $(seq 200); do xdpyinfo >/dev/null 2>&1 && break; sleep 0.1; done
pgrep -x xfce4-session >/dev/null || setsid startxfce4 >/dev/null 2>&1 </dev/null &
"""
_QUOTED: Final = _RUN.replace("'", "'\\''")

START: Final = f"flock -o {_LOCK} bash -c '{_QUOTED}'"
"""A command that returns when the screen is up; a second caller waits for the first."""

ENSURE: Final = f"""
if ! command -v Xvfb >/dev/null; then :
elif ! flock -n {_LOCK} true; then echo {STARTING}; exit 0
elif ! pgrep -x Xvfb >/dev/null; then
  setsid {START} >/dev/null 2>&1 </dev/null &
  echo {STARTING}; exit 0
else
  DISPLAY=${{DISPLAY:-:0}} timeout 3 xdotool getdisplaygeometry >/dev/null || exit 1
fi
"""
"""Lines for the head of a script: continue when the screen answers, exit with 1 when it does not. A
missing screen is started, and the script ends with `STARTING`. A template without a screen needs
none.
"""
