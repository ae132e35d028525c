"""The work inside with nothing but POSIX tools, for sandboxes without Python.

Slower, and a little poorer: every file is hashed at each look, changed ones travel one by one,
times are whole seconds, and names with a line break in them are not kept.
"""

from __future__ import annotations

import re
import shlex
import stat
from collections.abc import Mapping, Sequence
from typing import Any, Final

from sandkeeper.domain.files.ignore_rules import (
    DEFAULT_RULES,
    IGNORE_FILE,
    NOT_KEPT_MAX,
    PRUNED_FOLDERS,
    KeptPaths,
    read_rules,
)
from sandkeeper.domain.files.manifest import ManifestEntry
from sandkeeper.services.files.agent.inside.safe_replace import CHANGED

MARK: Final = "\x1e"
REFUSED: Final = 94
"""The exit code of work that a newer claim forbids."""
BATCH: Final = 200
"""Entries for which one shell line sets permissions, times and links."""
_LOOK: Final = re.compile(r"([0-9a-f]+) (\d+) (\d+) \./(.+)")
_HASH: Final = re.compile(r"([0-9a-f]{64})  \./(.+)")


def make_guard_line(fence: tuple[str, int, bool] | None) -> str:
    """Return the shell line that ends with `REFUSED` under an older claim than the newest here.

    It holds no lock: between its look and what follows it, a newer claim may come.
    """
    if fence is None:
        return ""
    path, number, is_forced = shlex.quote(fence[0]), fence[1], fence[2]
    refuse = "" if is_forced else f'if [ "$n" -gt {number} ]; then exit {REFUSED}; fi; '
    return (
        f"n=$(cat {path} 2>/dev/null); case $n in ''|*[!0-9]*) n=0;; esac; {refuse}"
        f'if [ "$n" -ne {number} ]; then echo {number} > {path}; fi; '
    )


def make_list_line(root: str) -> str:
    """Return the shell line whose output `read_list` understands."""
    # Pruned where they lie: hashing a package manager's tree would take longer than all the rest.
    names = " -o ".join(f"-name {shlex.quote(name)}" for name in PRUNED_FOLDERS)
    find = rf"find . \( -type d \( {names} \) -prune \) -o ! -name ."
    links = 'for f; do printf "%s\\n%s\\n" "$f" "$(readlink "$f")"; done'
    parts = (
        f"cat {IGNORE_FILE} 2>/dev/null",
        rf"{find} -exec stat -c '%f %s %Y %n' {{}} + 2>/dev/null",
        rf"{find} -type f -exec sha256sum {{}} + 2>/dev/null",
        rf"{find} -type l -exec sh -c {shlex.quote(links)} sh {{}} +",
    )
    split = f"; printf '\\n{MARK}\\n'; "
    return f"cd {shlex.quote(root)} 2>/dev/null || exit 0; {split.join(parts)}; exit 0"


def read_list(output: str, entries_max: int, secret_rules: Sequence[str] = ()) -> dict[str, Any]:
    """Return the output as the script inside would have answered."""
    sections = [part.strip("\n").split("\n") for part in output.split(f"\n{MARK}\n")]
    rules, looks, hashes, links = [*sections, *[[]] * 4][:4]
    kept = KeptPaths([*DEFAULT_RULES, *read_rules("\n".join(rules))], secret_rules)
    found = (_HASH.fullmatch(line) for line in hashes)
    digests = {one[2]: one[1] for one in found if one}
    targets = {path.removeprefix("./"): target for path, target in zip(links[::2], links[1::2])}  # noqa: B905  An odd last line has no pair.
    entries: list[list[Any]] = []
    problems: list[list[str]] = []
    for look in (_LOOK.fullmatch(line) for line in looks):
        if look is None:
            continue
        raw, size, seconds, path = int(look[1], 16), int(look[2]), int(look[3]), look[4]
        if kept.skips_deeply(path, stat.S_ISDIR(raw)):
            continue
        mode, mtime_ns = stat.S_IMODE(raw), seconds * 1_000_000_000
        if stat.S_ISDIR(raw):
            entries.append([path, "dir", mode, 0, mtime_ns, "", ""])
        elif stat.S_ISLNK(raw) and path in targets:
            entries.append([path, "symlink", 0o777, 0, mtime_ns, "", targets[path]])
        elif stat.S_ISREG(raw) and path in digests:
            entries.append([path, "file", mode, size, mtime_ns, "", digests[path]])
        elif stat.S_ISREG(raw):
            problems.append([path, "it cannot be read, or its name has a line break in it"])
    return {
        "entries": entries,
        "problems": problems,
        "too_many": len(entries) > entries_max,
        "not_kept": sorted(kept.secret_files)[:NOT_KEPT_MAX],
        "not_kept_count": len(kept.secret_files),
    }


def make_finish_line(
    root: str,
    entries: Sequence[ManifestEntry],
    parts: dict[str, str],
    remove: Sequence[tuple[str, int]],
    seen_as: Mapping[str, str] | None = None,
) -> str:
    """Return the line that moves parts, makes links and folders, and sets modes and times.

    What `seen_as` names is replaced only if it still looks like that; an empty look is nothing.
    """
    lines = []
    for one in entries:
        path = shlex.quote(f"{root}/{one.path}")
        steps = [f"mkdir -p {shlex.quote(f'{root}/{one.path}'.rpartition('/')[0])}"]
        look = None if seen_as is None else seen_as.get(one.path)
        if look is not None and one.kind != "dir":
            now = f'"$(stat -c %s.%Y {path} 2>/dev/null)"'
            steps.append(f"{{ [ {now} = {shlex.quote(look)} ] || {{ echo {CHANGED}; false; }}; }}")
        if one.kind == "dir":
            steps = [f"mkdir -p {path}", f"chmod {one.mode:o} {path}"]
        elif one.kind == "symlink":
            steps.append(f"ln -sfn {shlex.quote(one.target)} {path}")
        else:
            if one.path in parts:
                steps.append(f"mv -f {shlex.quote(parts[one.path])} {path}")
            steps += [f"chmod {one.mode:o} {path}", f"touch -d @{one.mtime_ns // 10**9} {path}"]
        lines.append(f"{{ {' && '.join(steps)}; }} 2>&1 || echo {shlex.quote(MARK + one.path)}")
    for name, at in remove:
        path = shlex.quote(f"{root}/{name}")
        is_old = f'test "$(stat -c %Y {path})" -le {at // 10**9}'
        lines.append(
            f"{{ test -d {path} && rmdir {path} || {is_old} && rm -f {path}; }} 2>/dev/null"
        )
    return "\n".join([*lines, "exit 0"])


def read_lost(output: str) -> list[list[str]]:
    """Return what the line could not finish, each with what was said before it."""
    lost: list[list[str]] = []
    said = ""
    for line in output.splitlines():
        if line.startswith(MARK):
            lost.append([line[1:], said or "it could not be put in place"])
        said = line
    return lost
