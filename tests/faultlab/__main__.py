"""Run the fault lab: `python -m faultlab --seed 7 --minutes 1 --replicas 2 --database postgresql`.

With several seeds' worth of time the seeds count up from the given one. A run that breaks a promise
prints its seed, its log, and the command that repeats it; the exit code is then 1.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
import time
from pathlib import Path

from faultlab.lab import Lab, Result
from faultlab.schedule import make_schedule
from sandkeeper.engine.runtime.base.rootfs import ensure_base
from sandkeeper.engine.runtime.bubblewrap import binaries
from support.engine_process import Engine

SECONDS = 30
STORY_LINES = 400


def run_seed(folder: Path, seed: int, *, seconds: float, replicas: int, database: str) -> Result:
    """Run one seed with an engine of its own."""
    data = folder / "engine"
    data.mkdir(mode=0o700)
    base = ensure_base(folder.parent, binaries.find_uid_base())
    (data / base.name).symlink_to(base)
    engine = Engine(data, "--webhook-retry-s", "0.5")
    try:
        engine.start()
        schedule = make_schedule(seed, seconds)
        lab = Lab(folder, engine, schedule, replicas=replicas, database=database)
        return asyncio.run(lab.run())
    finally:
        engine.stop()


def describe(result: Result, seed: int, *, seconds: float, replicas: int, database: str) -> str:
    """Return what a failing seed prints."""
    where = f"REPLICAS={replicas} DATABASE={database}"
    return "\n".join(
        [
            f"seed {seed} broke {len(result.broken)} promises:",
            *(f"  {line}" for line in result.broken),
            *result.story[-STORY_LINES:],
            "repeat it with:",
            f"  make faultlab SEED={seed} MINUTES=0 SECONDS={seconds:g} {where}",
        ]
    )


def keep_logs(folder: Path | None, result: Result, seed: int) -> None:
    """Write what the processes of a broken run said, if a folder is given."""
    if folder is None:
        return
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in {**result.logs, "story": "\n".join(result.story)}.items():
        (folder / f"seed-{seed}-{name}.log").write_text(text)


def main() -> int:
    parser = argparse.ArgumentParser(prog="faultlab")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=1.0, help="0 means one seed")
    parser.add_argument("--story", action="store_true", help="print every run's log")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="length of one seed")
    parser.add_argument("--replicas", type=int, default=1, choices=(1, 2, 3))
    parser.add_argument("--database", default="sqlite", choices=("sqlite", "postgresql"))
    parser.add_argument("--logs", type=Path, help="a folder for the logs of broken runs")
    given = parser.parse_args()
    ends = time.monotonic() + given.minutes * 60
    seed, failed = given.seed, 0
    options = {
        "seconds": given.seconds,
        "replicas": given.replicas,
        "database": given.database,
    }
    while True:
        begun = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="faultlab-", ignore_cleanup_errors=True) as name:
            (Path(name) / "run").mkdir()
            result = run_seed(Path(name) / "run", seed, **options)
        took_s = time.monotonic() - begun
        outcome = "broken" if result.broken else "ok"
        counts = ", ".join(f"{name} {count}" for name, count in sorted(result.counts.items()))
        print(f"seed {seed}: {outcome} in {took_s:.0f} s ({counts})", flush=True)
        if given.story and not result.broken:
            print("\n".join(result.story))
        if result.broken:
            failed += 1
            print(describe(result, seed, **options), flush=True)
            keep_logs(given.logs, result, seed)
        seed += 1
        if time.monotonic() >= ends:
            break
    print(f"{seed - given.seed} seeds, {failed} broken")
    return 1 if failed else 0


if __name__ == "__main__":
    os.environ.pop("SANDKEEPER_DATA", None)
    sys.exit(main())
