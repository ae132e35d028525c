"""The results of a run: rows with their spread, their goal and the baseline beside them."""

from __future__ import annotations

import json
import os
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

from rich.console import Console
from rich.table import Table

RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True, slots=True)
class Row:
    """One figure. `at_most` and `at_least` are goals; without either it is only reported."""

    part: str
    name: str
    value: float
    unit: str
    low: float | None = None
    high: float | None = None
    at_most: float | None = None
    at_least: float | None = None
    note: str = ""

    @property
    def is_met(self) -> bool | None:
        if self.at_most is not None:
            return self.value <= self.at_most
        if self.at_least is not None:
            return self.value >= self.at_least
        return None


@dataclass(slots=True)
class Report:
    """Collect the rows of all parts and report how busy the machine was."""

    rows: list[Row] = field(default_factory=list)
    load_before: float = field(default_factory=lambda: os.getloadavg()[0])
    started_at: float = field(default_factory=time.time)
    failed: dict[str, str] = field(default_factory=dict)
    """The parts that ended with an error, and the error."""

    @contextmanager
    def measuring(self, part: str) -> Iterator[None]:
        """Report an error in this part and go on: the rows of the others are still wanted."""
        try:
            yield
        except Exception as error:  # noqa: BLE001  A part may fail in any way.
            Console(stderr=True).print_exception()
            self.failed[part] = f"{type(error).__name__}: {error}"

    def add(self, row: Row) -> None:
        self.rows.append(row)
        Console(stderr=True).print(f"  {row.part}: {row.name}: {_figure(row.value)} {row.unit}")

    def add_times(
        self, part: str, name: str, seconds: Sequence[float], *, at_most: float | None = None
    ) -> float:
        """Add the median of some durations in milliseconds, with the 10th and 90th percentiles."""
        times = sorted(value * 1000 for value in seconds)
        median = statistics.median(times)
        low, high = times[len(times) // 10], times[(len(times) * 9) // 10]
        self.add(Row(part, name, median, "ms", low=low, high=high, at_most=at_most))
        return median

    def render(self) -> None:
        table = Table(title="Sandkeeper bench", title_justify="left")
        for heading in ("part", "what", "median", "10 % … 90 %", "goal", "", "note"):
            table.add_column(heading, justify="right" if heading == "median" else "left")
        for row in self.rows:
            table.add_row(
                row.part,
                row.name,
                f"{_figure(row.value)} {row.unit}",
                ""
                if row.low is None or row.high is None
                else f"{_figure(row.low)} … {_figure(row.high)}",
                _goal(row),
                {True: "met", False: "MISSED", None: ""}[row.is_met],
                row.note,
            )
        console = Console(width=150)
        console.print(table)
        for part, error in self.failed.items():
            console.print(f"FAILED {part}: {error}", markup=False)
        console.print(
            f"load before {self.load_before:.1f}, after {os.getloadavg()[0]:.1f}, "
            f"{os.cpu_count()} cores, {time.time() - self.started_at:.0f} s"
        )

    def save(self) -> Path:
        RESULTS.mkdir(exist_ok=True)
        path = RESULTS / f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime(self.started_at))}.json"
        rows = [asdict(row) for row in self.rows]
        path.write_text(json.dumps({"rows": rows, "failed": self.failed}, indent=1))
        return path


def _figure(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.2f}"


def _goal(row: Row) -> str:
    if row.at_most is not None:
        return f"≤ {_figure(row.at_most)}"
    return "" if row.at_least is None else f"≥ {_figure(row.at_least)}"
