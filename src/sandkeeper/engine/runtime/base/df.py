#!/usr/bin/python3 -I
"""`df` of a sandbox: its disk has the size of its limit, not that of the machine's disk.

The kernel knows no limit for a part of a file system, so this asks the machine's `df` for all
columns and replaces those of the sandbox's disk. What it does not know, the other one answers.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys

_REAL = "/usr/bin/df"
_LIMIT = "/usr/libexec/sandkeeper/disk"
_FIELDS = (
    *("source", "fstype", "itotal", "iused", "iavail", "ipcent"),
    *("size", "used", "avail", "pcent", "file", "target"),
)
_AMOUNTS = ("size", "used", "avail")
_HEADS = {
    "source": "Filesystem",
    "fstype": "Type",
    "itotal": "Inodes",
    "iused": "IUsed",
    "iavail": "IFree",
    "ipcent": "IUse%",
    "used": "Used",
    "avail": "Avail",
    "pcent": "Use%",
    "file": "File",
    "target": "Mounted on",
}
_WIDTHS = {"source": 14, "size": 5, "used": 5, "avail": 5}
_LEFT = ("source", "fstype", "file", "target")
_PLAIN = ("source", "size", "used", "avail", "pcent", "target")
_SIZE = re.compile(r"(\d*)([KMGT]?)(iB|B)?")


def main() -> None:
    """Print the table, or become the machine's `df`."""
    try:
        asked = _parse(sys.argv[1:])
        with open(_LIMIT) as file:  # noqa: PTH123 -- of any Python, and quick to start.
            total, used = map(int, file.read().split())
        rows = _list_rows(asked, total, used)
    except (OSError, ValueError, TypeError, argparse.ArgumentError, subprocess.CalledProcessError):
        # TypeError: of a Python that is older than the engine's.
        os.execv(_REAL, [_REAL, *sys.argv[1:]])  # noqa: S606 -- no shell is wanted.
    _print(asked, rows)


def _parse(arguments: list[str]) -> argparse.Namespace:
    """Return the options. Raises ArgumentError or ValueError for those of the other one."""
    parser = argparse.ArgumentParser(add_help=False, exit_on_error=False, allow_abbrev=False)
    for short, long in (("-h", "--human-readable"), ("-H", "--si"), ("-P", "--portability")):
        parser.add_argument(short, long, action="store_true")
    parser.add_argument("-T", "--print-type", action="store_true")
    parser.add_argument("-k", dest="block_size", action="store_const", const="1K")
    parser.add_argument("-m", dest="block_size", action="store_const", const="1M")
    parser.add_argument("-B", "--block-size")
    parser.set_defaults(block_size="1K")
    parser.add_argument("--output", nargs="?", const=",".join(_FIELDS))
    parser.add_argument("-a", "--all", action="append_const", dest="passed", const="-a")
    parser.add_argument("-l", "--local", action="append_const", dest="passed", const="-l")
    asked, files = parser.parse_known_args(arguments)
    if any(one.startswith("-") for one in files):
        raise ValueError("an option of the other one")
    asked.files = files
    asked.fields = asked.output.split(",") if asked.output else list(_PLAIN)
    if asked.print_type and not asked.output:
        asked.fields.insert(1, "fstype")
    if not set(asked.fields) <= set(_FIELDS):
        raise ValueError("a field of the other one")
    asked.unit, asked.suffix = _read_unit(asked.block_size)
    return asked


def _read_unit(text: str) -> tuple[int, str]:
    """Return the bytes of a unit, and what is written behind each number of it."""
    found = _SIZE.fullmatch(text)
    if found is None:
        raise ValueError("a unit of the other one")
    digits, letter, ending = found.groups()
    step = 1000 if ending == "B" else 1024
    unit = int(digits or 1) * step ** (" KMGT".index(letter) if letter else 0)
    return unit, "" if digits else text


def _list_rows(asked: argparse.Namespace, total: int, used: int) -> list[dict[str, str]]:
    line = [_REAL, "-B1", f"--output={','.join(_FIELDS)}", *(asked.passed or ()), "--"]
    done = subprocess.run(
        [*line, *asked.files],
        env={**os.environ, "LC_ALL": "C"},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        check=True,
    )
    rows = []
    for text in done.stdout.splitlines()[1:]:
        row = dict(zip(_FIELDS, text.split(None, len(_FIELDS) - 1), strict=True))
        if row["fstype"] == "overlay":
            free = max(0, min(total - used, int(row["avail"])))
            row |= {"size": str(total), "used": str(used), "avail": str(free)}
            row["pcent"] = f"{-(-100 * used // max(1, used + free))}%"
        rows.append(row)
    return rows


def _print(asked: argparse.Namespace, rows: list[dict[str, str]]) -> None:
    human = 1000 if asked.si else 1024 if asked.human_readable else 0
    heads = _HEADS | {"size": _name_size(asked, human)}
    if not human and not asked.output:
        heads["avail"] = "Available"
    if asked.portability and not human:
        heads["pcent"] = "Capacity"
    table = [[heads[field] for field in asked.fields]]
    for row in rows:
        for field in _AMOUNTS:
            if row[field].isdigit():
                row[field] = _show(asked, int(row[field]), human)
        table.append([row[field] for field in asked.fields])
    columns = zip(asked.fields, zip(*table, strict=True), strict=True)
    widths = [max(_WIDTHS.get(field, 0), *map(len, cells)) for field, cells in columns]
    for cells in table:
        shown = [
            cell.ljust(width) if field in _LEFT else cell.rjust(width)
            for field, cell, width in zip(asked.fields, cells, widths, strict=True)
        ]
        sys.stdout.write(" ".join(shown).rstrip() + "\n")


def _name_size(asked: argparse.Namespace, human: int) -> str:
    if human:
        return "Size"
    if asked.portability:
        return f"{asked.unit}-blocks"
    size = asked.block_size if asked.unit > 1 else "1B"
    return f"{'1' if asked.suffix else ''}{size}-blocks"


def _show(asked: argparse.Namespace, amount: int, human: int) -> str:
    """Return an amount as `df` does: rounded up, with one digit after the dot below 10."""
    if not human:
        return f"{-(-amount // asked.unit)}{asked.suffix}"
    names = ["", "k" if human == 1000 else "K", *"MGTPE"]
    scale = 1
    while -(-amount // scale) >= human and len(names) > 1:
        scale *= human
        names.pop(0)
    tenths = -(-amount * 10 // scale)
    if scale > 1 and tenths < 100:
        return f"{tenths // 10}.{tenths % 10}{names[0]}"
    return f"{-(-amount // scale)}{names[0]}"


if __name__ == "__main__":
    main()
