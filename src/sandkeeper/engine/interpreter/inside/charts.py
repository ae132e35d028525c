"""Matplotlib figures as data: E2B's `chart`, from which a page can draw its own.

It is read from the artists of a figure that was drawn already, because only then its ticks have
labels. The Python kernel imports this with the first figure, so other code does not wait for it.
"""

from __future__ import annotations

import datetime
import importlib
import math
import re
from typing import Any

_UNIT = re.compile(r"\s\((.*?)\)|\[(.*?)\]")


def read_chart(figure: Any) -> dict[str, Any] | None:
    """Return the chart of a figure, None for one that shows nothing."""
    axes = figure.get_axes()
    charts = [chart for chart in map(read_axes, axes) if chart is not None]
    if len(axes) > 1 and charts:
        title = figure.get_suptitle() if hasattr(figure, "get_suptitle") else None
        return {"type": "superchart", "title": title or None, "elements": charts}
    return charts[0] if charts else None


def read_axes(ax: Any) -> dict[str, Any] | None:
    """Return the chart of one pair of axes, `unknown` where it mixes kinds or is none of E2B's."""
    kind = find_kind(ax)
    if kind is None:
        return None
    reader = {
        "line": read_lines,
        "scatter": read_scatter,
        "bar": read_bars,
        "pie": read_pie,
        "box_and_whisker": read_boxes,
    }.get(kind)
    chart: dict[str, Any] = {"type": kind, "title": ax.get_title() or None, "elements": []}
    return chart | (reader(ax) if reader else {})


def find_kind(ax: Any) -> str | None:
    """Name what the axes show, None for nothing."""
    lines, patches, points = own_lines(ax), list(ax.patches), find_scattered(ax)
    others = bool(ax.images or ax.tables)
    if not (lines or patches or ax.collections or others):
        return None
    is_filled = bool(patches) and not (lines or points or others)
    is_plotted = not (patches or others)
    kinds = {
        "box_and_whisker": bool(find_boxes(ax)),
        "pie": is_filled and all(is_a(one, "patches", "Wedge") for one in patches),
        "bar": is_filled
        and bool(bar_groups(ax))
        and all(is_a(one, "patches", "Rectangle") for one in patches),
        "line": is_plotted and bool(lines) and not points,
        "scatter": is_plotted and bool(points) and not lines,
    }
    return next((kind for kind, is_it in kinds.items() if is_it), "unknown")


def is_a(thing: Any, module: str, name: str) -> bool:
    return isinstance(thing, getattr(importlib.import_module(f"matplotlib.{module}"), name))


def own_lines(ax: Any) -> list[Any]:
    """Return the lines that show data; one that spans the axes (`axhline`) is a mark."""
    return [line for line in ax.lines if line.get_transform() == ax.transData]


def find_scattered(ax: Any) -> list[Any]:
    return [one for one in ax.collections if is_a(one, "collections", "PathCollection")]


def bar_groups(ax: Any) -> list[Any]:
    return [one for one in ax.containers if is_a(one, "container", "BarContainer")]


def read_planar(ax: Any) -> dict[str, Any]:
    """Return the labels of both axes, and the units in them: `Speed (km/h)`."""
    found: dict[str, Any] = {}
    for name, label in (("x", ax.get_xlabel()), ("y", ax.get_ylabel())):
        unit = _UNIT.search(label)
        found[f"{name}_label"] = label or None
        found[f"{name}_unit"] = (unit[1] or unit[2]) if unit else None
    return found


def swap(planar: dict[str, Any]) -> dict[str, Any]:
    """Swap the axes of a horizontal chart, so that x has the categories."""
    return {{"x": "y", "y": "x"}[name[0]] + name[1:]: value for name, value in planar.items()}


def read_scales(ax: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, axis in (("x", ax.xaxis), ("y", ax.yaxis)):
        ticks, labels = list(axis.get_ticklocs()), tick_labels(axis)
        converter = type(get_converter(axis)).__name__
        scale = axis.get_scale()
        if "Date" in converter:
            scale = "datetime"
            to_date = importlib.import_module("matplotlib.dates").num2date
            ticks = [to_date(tick) for tick in ticks]
        elif scale == "linear" and (converter == "StrCategoryConverter" or is_named(ticks, labels)):
            scale = "categorical"
        found[f"{name}_ticks"] = [plain(tick) for tick in ticks]
        found[f"{name}_tick_labels"] = labels
        found[f"{name}_scale"] = scale
    return found


def get_converter(axis: Any) -> Any:
    return axis.get_converter() if hasattr(axis, "get_converter") else axis.converter


def tick_labels(axis: Any) -> list[str]:
    return [label.get_text() for label in axis.get_ticklabels()]


def is_named(ticks: list[Any], labels: list[str]) -> bool:
    """Return whether ticks 0, 1, 2, … have names instead of numbers."""
    pairs = list(zip(ticks, labels, strict=False))
    return bool(pairs) and all(
        tick == place and label not in ("", str(place)) for place, (tick, label) in enumerate(pairs)
    )


def plain(value: Any) -> Any:
    """Return a value as JSON knows it."""
    if type(value).__name__ == "datetime64":
        return str(value.astype("datetime64[s]"))
    if hasattr(value, "item"):
        value = value.item()
    if isinstance(value, datetime.date):
        return value.isoformat()
    return value if isinstance(value, str | int | float) else str(value)


def name_of(artist: Any, kind: str) -> str:
    """Return its label, or a number where the code gave none."""
    label = str(artist.get_label())
    found = re.fullmatch(r"_[a-z]+(\d+)", label)
    return f"{kind} {found[1]}" if found else label


def read_lines(ax: Any) -> dict[str, Any]:
    elements = [
        {"label": name_of(line, "Line"), "points": pairs_of(line.get_xdata(), line.get_ydata())}
        for line in own_lines(ax)
    ]
    return {**read_planar(ax), **read_scales(ax), "elements": elements}


def read_scatter(ax: Any) -> dict[str, Any]:
    elements = []
    for points in find_scattered(ax):
        offsets = points.get_offsets()
        pairs = pairs_of(offsets[:, 0], offsets[:, 1])
        elements.append({"label": name_of(points, "Points"), "points": pairs})
    return {**read_planar(ax), **read_scales(ax), "elements": elements}


def pairs_of(xs: Any, ys: Any) -> list[tuple[Any, Any]]:
    return [(plain(x), plain(y)) for x, y in zip(xs, ys, strict=False)]


def read_bars(ax: Any) -> dict[str, Any]:
    planar, elements = read_planar(ax), []
    is_lying = any(group.orientation == "horizontal" for group in bar_groups(ax))
    for group in bar_groups(ax):
        middles = [middle_of(bar, is_lying=is_lying) for bar in group]
        labels = label_bars(ax.yaxis if is_lying else ax.xaxis, middles)
        for label, bar in zip(labels, group, strict=True):
            value = bar.get_width() if is_lying else bar.get_height()
            named = name_of(group, "Group")
            elements.append({"label": label, "group": named, "value": plain(value)})
    return {**(swap(planar) if is_lying else planar), "elements": elements}


def middle_of(bar: Any, *, is_lying: bool) -> float:
    if is_lying:
        return float(bar.get_y() + bar.get_height() / 2)
    return float(bar.get_x() + bar.get_width() / 2)


def label_bars(axis: Any, middles: list[float]) -> list[str]:
    """Return each bar the label of its tick: below it, else the one at its place in the row."""
    ticks, labels = list(axis.get_ticklocs()), tick_labels(axis)
    below = [
        next((text for at, text in zip(ticks, labels, strict=False) if math.isclose(at, one)), "")
        for one in middles
    ]
    if all(below):
        return below
    if len(labels) == len(middles):
        return labels
    return [text or f"{one:g}" for text, one in zip(below, middles, strict=True)]


def read_pie(ax: Any) -> dict[str, Any]:
    elements = [
        {
            "label": str(wedge.get_label()),
            "angle": round(abs(float(wedge.theta2) - float(wedge.theta1)), 4),
            "radius": float(wedge.r),
        }
        for wedge in ax.patches
    ]
    return {"elements": elements}


def find_boxes(ax: Any) -> list[Any]:
    """Return the paths of a box plot's boxes, which are patches or closed lines."""
    closed = [line for line in own_lines(ax) if is_rectangle(line.get_path())]
    if ax.patches and all(is_a(one, "patches", "PathPatch") for one in ax.patches):
        closed = [one for one in ax.patches if is_rectangle(one.get_path())]
    # A box has two whiskers, two caps and a median.
    return [one.get_path() for one in closed] if len(ax.lines) >= 5 * len(closed) else []


def is_rectangle(path: Any) -> bool:
    corners = [tuple(map(float, point)) for point in path.vertices[:5]]
    sides = [{x for x, _ in corners}, {y for _, y in corners}]
    return len(corners) == 5 and corners[0] == corners[4] and [len(one) for one in sides] == [2, 2]


def read_boxes(ax: Any) -> dict[str, Any]:
    planar, paths = read_planar(ax), find_boxes(ax)
    strokes = [[tuple(map(float, at)) for at in line.get_xydata()] for line in own_lines(ax)]
    is_lying = not any(find_median(path.vertices, strokes) is not None for path in paths)
    labels = tick_labels(ax.yaxis if is_lying else ax.xaxis)
    if is_lying:
        strokes = [[(y, x) for x, y in stroke] for stroke in strokes]
    boxes = []
    for place, path in enumerate(paths):
        corners = [(float(x), float(y)) for x, y in path.vertices[:4]]
        box = measure_box([(y, x) for x, y in corners] if is_lying else corners, strokes)
        label = labels[place] if place < len(labels) else str(place + 1)
        boxes.append({"label": label, **box})
    return {**(swap(planar) if is_lying else planar), "elements": boxes}


def find_median(corners: Any, strokes: list[Any]) -> float | None:
    """Return the height of the level stroke from one side of the box to the other."""
    left, right, low, high = span(corners)
    for stroke in strokes:
        if len(stroke) == 2 and stroke[0][1] == stroke[1][1] and low <= stroke[0][1] <= high:
            ends = sorted(x for x, _ in stroke)
            if math.isclose(ends[0], left) and math.isclose(ends[1], right):
                return float(stroke[0][1])
    return None


def measure_box(corners: list[Any], strokes: list[Any]) -> dict[str, Any]:
    """Return a vertical box's values: whiskers start at its edges, outliers are single marks."""
    left, right, low, high = span(corners)
    middle = (left + right) / 2
    least, most = low, high
    outliers: list[float] = []
    for stroke in strokes:
        if not all(math.isclose(x, middle) for x, _ in stroke):
            continue
        heights = [y for _, y in stroke]
        if len(stroke) == 2 and low in heights and min(heights) < low:
            least = min(heights)
        elif len(stroke) == 2 and high in heights and max(heights) > high:
            most = max(heights)
        elif not {low, high} & set(heights):
            outliers += heights
    median = find_median(corners, strokes)
    return {
        "min": least,
        "first_quartile": low,
        "median": (low + high) / 2 if median is None else median,
        "third_quartile": high,
        "max": most,
        "outliers": outliers,
    }


def span(corners: Any) -> tuple[float, float, float, float]:
    xs, ys = [float(x) for x, _ in corners], [float(y) for _, y in corners]
    return min(xs), max(xs), min(ys), max(ys)
