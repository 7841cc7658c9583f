"""A report's tables: which predictions are shown."""

from dpscope.analysis.cells.comparison import Comparison
from dpscope.analysis.cells.predicted import CollectivePrediction
from dpscope.analysis.findings.predictions import off_notes
from dpscope.analysis.report.prediction_tables import collective_table
from tests.helpers.known import known
from tests.helpers.made_rows import made_row


def test_the_collective_that_a_note_is_about_is_shown_however_small() -> None:
    """Of nine sizes the eighth takes five times as long as predicted: the note says so, and its row
    stays.
    """
    rows = tuple(
        CollectivePrediction(
            "ddp-d2-b8", "all_reduce", 1e6 * size, 2, 1.0, 100.0, 20.0 if size == 2 else 100.0
        )
        for size in range(9, 0, -1)
    )
    comparison = Comparison(
        {"ddp-d2-b8": made_row("ddp-d2-b8", transfer_us=100.0)}, predictions=rows
    )
    (note,) = off_notes(comparison)
    assert "-80% off" in note
    table = known(collective_table(comparison))
    assert [row[2] for row in table.rows] == [f"{size}.00 MB" for size in (9, 8, 7, 6, 5, 4, 2)]
    assert table.notes[-1] == "2 other sizes are not shown"
