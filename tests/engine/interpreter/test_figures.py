"""Figures and tables: what matplotlib and pandas draw, as pictures and as data, through the SDK."""

from __future__ import annotations

from typing import Any

from e2b_code_interpreter import Sandbox
from e2b_code_interpreter.charts import (
    BarChart,
    BoxAndWhiskerChart,
    LineChart,
    PieChart,
    ScatterChart,
    SuperChart,
)


def draw(box: Sandbox, code: str) -> Any:
    """Return the chart of the one figure that the code draws; it must be a picture, too."""
    execution = box.run_code(f"import matplotlib.pyplot as plt\n{code}\nplt.show()")
    assert execution.error is None, execution.error
    (shown,) = execution.results
    assert shown.png[:5] == "iVBOR"
    return shown.chart


def test_lines_have_their_points_labels_units_and_scales(box: Sandbox) -> None:
    chart = draw(
        box,
        "plt.plot([1, 2, 3], [4, 5, float('nan')], label='speed')\nplt.plot([1, 3], [5, 5])\n"
        "plt.axhline(4)\nplt.grid()\nplt.title('A ride')\n"
        "plt.xlabel('Time (s)')\nplt.ylabel('Speed [km/h]')\nplt.yscale('log')",
    )

    assert isinstance(chart, LineChart)
    assert (chart.title, chart.x_label, chart.x_unit) == ("A ride", "Time (s)", "s")
    assert (chart.y_unit, chart.x_scale, chart.y_scale) == ("km/h", "linear", "log")
    assert [one.label for one in chart.elements] == ["speed", "Line 1"]
    assert chart.elements[0].points == [(1, 4), (2, 5), (3, None)]
    assert chart.elements[1].points == [(1, 5), (3, 5)]
    assert len(chart.x_ticks) == len(chart.x_tick_labels)


def test_dates_and_names_are_scales_of_their_own(box: Sandbox) -> None:
    dated = draw(box, "from datetime import date\nplt.plot([date(2026, 1, 1)], [1], 'o')")
    named = draw(box, "plt.scatter(['a', 'b'], [1, 2], label='two')")

    assert (dated.x_scale, dated.elements[0].points) == ("datetime", [("2026-01-01", 1)])
    assert dated.x_ticks[0].startswith("20")
    assert isinstance(named, ScatterChart)
    assert (named.x_scale, named.x_tick_labels) == ("categorical", ["a", "b"])
    assert (named.elements[0].label, named.elements[0].points) == ("two", [(0, 1), (1, 2)])


def test_bars_have_their_names_groups_and_values_standing_and_lying(box: Sandbox) -> None:
    standing = draw(
        box,
        "plt.bar([0, 1], [10, 20], width=.4, label='old')\n"
        "plt.bar([.4, 1.4], [30, 40], width=.4, label='new')\nplt.xticks([.2, 1.2], ['a', 'b'])",
    )
    lying = draw(box, "plt.barh(['a', 'b'], [1, 2])\nplt.xlabel('Count')")

    assert isinstance(standing, BarChart)
    assert [(one.group, one.label, one.value) for one in standing.elements] == [
        ("old", "a", 10),
        ("old", "b", 20),
        ("new", "a", 30),
        ("new", "b", 40),
    ]
    assert [(one.label, one.value) for one in lying.elements] == [("a", 1), ("b", 2)]
    assert (lying.x_label, lying.y_label) == (None, "Count")


def test_a_pie_has_angles_and_a_box_its_quartiles(box: Sandbox) -> None:
    pie = draw(box, "plt.pie([1, 3], labels=['a', 'b'])")
    assert isinstance(pie, PieChart)
    assert [(one.label, one.angle) for one in pie.elements] == [("a", 90), ("b", 270)]

    values = "[[1, 2, 3, 4, 20], [2, 3, 4, 5, 6]], tick_labels=['a', 'b']"
    for options in ("", ", patch_artist=True", ", orientation='horizontal'"):
        boxes = draw(box, f"plt.boxplot({values}{options})")
        assert isinstance(boxes, BoxAndWhiskerChart)
        first, second = boxes.elements
        assert (first.label, first.min, first.first_quartile, first.median) == ("a", 1, 2, 3)
        assert (first.third_quartile, first.max, first.outliers) == (4, 4, [20])
        assert (second.label, second.median, second.max, second.outliers) == ("b", 4, 6, [])


def test_several_axes_are_one_chart_of_charts_and_the_rest_is_unknown_or_none(box: Sandbox) -> None:
    both = draw(
        box,
        "figure, (left, right) = plt.subplots(1, 2)\nfigure.suptitle('Both')\n"
        "left.plot([1, 2])\nright.bar(['a'], [1])",
    )
    assert isinstance(both, SuperChart)
    assert [type(one) for one in both.elements] == [LineChart, BarChart]
    assert both.title == "Both"
    assert draw(box, "plt.imshow([[1, 2], [3, 4]])").type == "unknown"
    assert draw(box, "plt.subplots()") is None


def test_a_chart_of_more_points_than_fit_leaves_the_picture(box: Sandbox) -> None:
    assert draw(box, "plt.plot(range(500_000))") is None


def test_every_figure_of_one_call_is_shown_in_order(box: Sandbox) -> None:
    code = "plt.figure(); plt.plot([1, 2]); plt.figure(); plt.pie([1]);"

    charts = [result.chart for result in box.run_code(code).results]

    assert [type(chart) for chart in charts] == [LineChart, PieChart]


def test_a_table_comes_as_text_markup_and_data(box: Sandbox) -> None:
    code = (
        "import pandas\n"
        "pandas.DataFrame({'n': [1, None], 'at': pandas.to_datetime(['2026-01-01', None])})"
    )

    table = box.run_code(code, timeout=120).results[0]

    assert "<table" in table.html
    assert table.data == {"n": [1, None], "at": ["2026-01-01T00:00:00.000", None]}
