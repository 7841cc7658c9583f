"""Numbers as text: no negative zero, and decimals for means of counts. A table in all formats."""

import pytest

from dpscope.analysis.text.text_table import Field, render, table_of
from dpscope.analysis.text.units import Unit, as_ranges, choose_unit, show


@pytest.mark.parametrize(
    ("value", "shown"),
    [(-0.0, "0.0"), (-0.04, "0.0"), (-0.06, "-0.1"), (0.04, "0.0"), (-10.0, "-10.0")],
)
def test_zero_has_no_sign(value: float, shown: str) -> None:
    assert show(value, Unit("µs", 1.0, 1)) == shown


@pytest.mark.parametrize(
    ("values", "shown"), [([5.0, 7.0], "5"), ([5.0, 5.5], "5.0"), ([None, 3.4], "3.4")]
)
def test_a_mean_of_counts_has_decimals(values: list[float | None], shown: str) -> None:
    first = next(value for value in values if value is not None)
    assert show(first, choose_unit("count", values)) == shown


def test_ranks_beyond_the_most_ranges_are_counted() -> None:
    assert as_ranges([0, 2, 4, 5, 6], most=2) == "0, 2 and 3 more"
    assert as_ranges([0, 1, 4, 5, 6]) == "0, 1, 4 to 6"


def test_a_table_has_one_unit_of_times_and_a_meaning_for_each_heading() -> None:
    """Of 900, 1500 and 4000 us the middle one is more than a millisecond; a share is a percentage,
    None is NA.
    """
    rows = [
        {"cell": "a", "step": 900.0, "wait": 4000.0, "part": 0.5},
        {"cell": "b", "step": 1500.0, "wait": None, "part": 1},
    ]
    fields = [
        Field("cell", "cell", meaning="Which"), Field("step", lambda row: row["step"], "time"), Field("wait", "wait", "time"),
        Field("part", "part", "share"), Field("n", lambda row: 7, Unit("x", 1.0, 2)),
    ]  # fmt: skip
    table = table_of("Times", fields, rows)
    assert table.headings == ("cell", "step [ms]", "wait [ms]", "part [%]", "n [x]")
    assert table.rows == (
        ("a", "0.90", "4.00", "50.0", "7.00"),
        ("b", "1.50", "NA", "100.0", "7.00"),
    )
    assert table.meanings == ("Which", "", "", "", "")
    titled = table_of("Times [{unit}]", fields, rows, times=[3.0])
    assert (titled.title, titled.rows[0][1]) == ("Times [µs]", "900.00")
    assert titled.headings[1:4] == ("step", "wait", "part [%]")
    assert table_of("None", fields, []).rows == ()


def test_a_half_width_stands_behind_its_value_for_readers_and_alone_for_programs() -> None:
    fields = (
        Field("cell", "cell"),
        Field("step", "step", Unit("s", 1.0, 1)),
        Field("step ±", "half", Unit("s", 1.0, 1), is_half_width=True),
    )
    rows = [{"cell": "a", "step": 2.0, "half": 0.2}, {"cell": "b", "step": 3.0, "half": None}]
    table = table_of("Steps", fields, rows)
    assert "| a | 2.0 ± 0.2 |" in render(table, "markdown")
    assert "| b | 3.0 |" in render(table, "markdown")
    assert "a & 2.0 $\\pm$ 0.2" in render(table, "latex")
    assert render(table, "csv").splitlines() == [
        "cell,step [s],step ± [s]",
        "a,2.0,0.2",
        "b,3.0,NA",
    ]
