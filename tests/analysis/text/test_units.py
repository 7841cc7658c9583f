"""Numbers as text: no negative zero, and decimals for means of counts. A table in all formats."""

import pytest

from dpscope.analysis.text.text_table import TextTable, render
from dpscope.analysis.text.units import Unit, choose_unit, show, with_article


@pytest.mark.parametrize(
    ("value", "shown"), [(-0.0, "0.0"), (-0.04, "0.0"), (-0.06, "-0.1"), (0.04, "0.0"), (-10.0, "-10.0")]
)
def test_zero_has_no_sign(value: float, shown: str) -> None:
    assert show(value, Unit("µs", 1.0, 1)) == shown


@pytest.mark.parametrize(("values", "shown"), [([5.0, 7.0], "5"), ([5.0, 5.5], "5.0"), ([None, 3.4], "3.4")])
def test_a_mean_of_counts_has_decimals(values: list[float | None], shown: str) -> None:
    first = next(value for value in values if value is not None)
    assert show(first, choose_unit("count", values)) == shown


@pytest.mark.parametrize(
    ("number", "article"),
    [
        *((number, "an") for number in ("8 µs", "80.1 ms", "11.4 ms", "18 s", "11,000 s")),
        *((number, "a") for number in ("1.8 ms", "110.0 ms", "118.0 ms", "1,100 s", "9.8 ms")),
    ],
)
def test_an_article_follows_how_the_number_is_read(number: str, article: str) -> None:
    assert with_article(number) == f"{article} {number}"


TABLE = TextTable("Times", ("cell", "step [ms]"), (("a_b", "1.5"),))


def test_each_format_is_its_own() -> None:
    assert render(TABLE, "csv") == "cell,step [ms]\na_b,1.5\n"
    assert "| a_b | 1.5 |" in render(TABLE, "markdown")
    assert r"a\_b & 1.5" in render(TABLE, "latex")


@pytest.mark.parametrize("unknown", ["html", "table", "", "LATEX"])
def test_another_format_is_refused(unknown: str) -> None:
    with pytest.raises(ValueError, match="choose from markdown, csv, latex"):
        render(TABLE, unknown)
