"""Replace a file only if it was not changed since it was seen; a part of what runs inside."""

# ruff: noqa: PTH104, PTH108
# Loading pathlib would take longer than most of the work here.

from __future__ import annotations

import errno
import os
import time

# Why a file was left alone that was to be as it was seen.
CHANGED = "it was changed since"
# A file that changed this recently may change again under the same time stamp.
SETTLED_NS = 100_000_000


def make_stamp(status: os.stat_result, now: int) -> str:
    """Return how a file looks from outside; empty while it may still change under the same look."""
    changed = max(status.st_mtime_ns, status.st_ctime_ns)
    if changed > now - SETTLED_NS:
        return ""
    return f"{status.st_ino}.{status.st_size}.{status.st_mtime_ns}.{status.st_ctime_ns}"


def replace_unchanged(made: str, path: str, stamp: str) -> None:
    """Move a file to its place unless what is there was changed since it had this stamp.

    The place is never written over: what is there is moved aside, looked at, and moved back if it
    is not what was seen. A link is made only where nothing is.
    """
    aside = made + "-old"
    try:
        is_replaced = _swap(made, path, aside, stamp)
    except (FileExistsError, FileNotFoundError):
        is_replaced = False
    except OSError:
        if os.path.lexists(aside):
            os.rename(aside, path)
        raise
    finally:
        for name in (made, aside):
            if os.path.lexists(name):
                os.unlink(name)
    if not is_replaced:
        raise OSError(errno.EEXIST, CHANGED)


def _swap(made: str, path: str, aside: str, stamp: str) -> bool:
    if not stamp:
        os.link(made, path, follow_symlinks=False)
        return True
    if make_stamp(os.lstat(path), time.time_ns()) != stamp:
        return False
    os.rename(path, aside)
    if not _is_seen(aside, stamp):
        os.link(aside, path, follow_symlinks=False)
        return False
    os.link(made, path, follow_symlinks=False)
    if not _is_seen(aside, stamp):  # By a program that had it open.
        os.rename(aside, path)
        return False
    return True


def _is_seen(aside: str, stamp: str) -> bool:
    """Return whether a file moved aside is as its stamp says; the move changed its ctime."""
    look = os.lstat(aside)
    return stamp.startswith(f"{look.st_ino}.{look.st_size}.{look.st_mtime_ns}.")
