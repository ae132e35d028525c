"""Run `make bench`: every part, or the named ones: `make bench ARGS="engine"`.

A single measurement of the keeper can be named alone: `make bench ARGS="keeper.status"`.
"""

from __future__ import annotations

import argparse
import importlib
import signal
import sys

from rich.console import Console

from bench.keeper import MEASURES
from bench.report import Report

PARTS = ("engine", "keeper", "wake", "capture", "encryption", "sessions", "start", "browser")
LONG_PARTS = ("scale",)
"""They run only when they are named."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench", description=__doc__)
    parser.add_argument(
        "parts", nargs="*", metavar="PART", help=f"one of {', '.join(PARTS + LONG_PARTS)}"
    )
    parser.add_argument("--records", type=int, help="sandboxes of the part scale")
    parser.add_argument("--events", type=int, help="entries of the log of the part scale")
    given = parser.parse_args()
    named = given.parts
    sizes = {name: getattr(given, name) for name in ("records", "events") if getattr(given, name)}
    known = {*PARTS, *LONG_PARTS, *(f"keeper.{name}" for name in MEASURES)}
    unknown = set(named) - known
    if unknown:
        parser.error(f"no such part: {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    # Either signal unwinds what is open: no process and no folder stays behind. They are set here
    # because the parent process may have left them ignored.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    report = Report()
    for part in named or PARTS:
        Console(stderr=True).print(f"measuring {part} …")
        with report.measuring(part):
            name, _, measure = part.partition(".")
            chosen = {"only": measure} if measure else sizes if name in LONG_PARTS else {}
            importlib.import_module(f"bench.{name}").run(report, **chosen)
    report.render()
    Console(stderr=True).print(f"written to {report.save()}")
    if report.failed:
        sys.exit(1)


if __name__ == "__main__":
    main()
