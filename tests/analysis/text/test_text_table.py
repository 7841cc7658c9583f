"""A table as text in all formats."""

import pytest

from dpscope.analysis.text.text_table import TextTable, render

TABLE = TextTable("Times", ("cell", "step [ms]"), (("a_b", "1.5"),))


def test_each_format_is_its_own() -> None:
    assert render(TABLE, "csv") == "cell,step [ms]\na_b,1.5\n"
    assert "| a_b | 1.5 |" in render(TABLE, "markdown")
    assert r"a\_b & 1.5" in render(TABLE, "latex")


@pytest.mark.parametrize("unknown", ["html", "table", "", "LATEX"])
def test_another_format_is_refused(unknown: str) -> None:
    with pytest.raises(ValueError, match="choose from markdown, csv, latex"):
        render(TABLE, unknown)
