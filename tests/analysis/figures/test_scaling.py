"""The figure of a study: its three panels, from a comparison with speedups and accuracies."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from matplotlib.patches import Rectangle

from dpscope.analysis.cells.comparison import Comparison
from dpscope.analysis.cells.row import CellRow
from dpscope.analysis.cells.scaling import ScalingPoint, ScalingSeries
from dpscope.analysis.figures.scaling import draw_study
from dpscope.analysis.figures.style import whiskers
from dpscope.analysis.stats.samples import Estimate
from tests.helpers.made_rows import made_row

# Strong scaling of a global batch of 64: 1.6x on 2 and 2.5x on 4 devices. Karp-Flatt on 4: (1/2.5 -
# 1/4) / (3/4) = 0.2.
STRONG = ScalingSeries(
    "ddp",
    "",
    "strong",
    64,
    (
        ScalingPoint("ddp-d2-b32", 2, Estimate(1.6, 1.5, 1.7, 20), 0.25),
        ScalingPoint("ddp-d4-b16", 4, Estimate(2.5, 2.4, 2.6, 20), 0.2),
    ),
    None,
)
TRAINED = [
    made_row(
        cell="single-d1-b32", strategy="single", devices=1, test_accuracy_percent=91.0, test_accuracy_percent_min=90.5,
        test_accuracy_percent_max=91.4,
    ),
    made_row(
        cell="ddp-d2-b32", strategy="ddp", devices=2, test_accuracy_percent=90.0, test_accuracy_percent_min=89.0,
        test_accuracy_percent_max=90.8,
    ),
    made_row("ddp-d4-b16", devices=4),
]  # fmt: skip


def comparison(
    trained: Sequence[CellRow], scaling: tuple[ScalingSeries, ...] = (STRONG,)
) -> Comparison:
    rows = {row.cell: row for row in trained}
    return Comparison(rows, scaling=scaling, target_efficiency=0.8)


def test_speedup_efficiency_and_accuracy_stand_side_by_side() -> None:
    figure = draw_study(
        comparison([*TRAINED, replace(TRAINED[1], cell="ddp-d2-b16")])
    )  # two cells that the same training stands for
    assert figure is not None
    left, middle, right = figure.axes
    assert {"ideal", "Amdahl, 20% serial"} <= {str(line.get_label()) for line in left.lines}
    (amdahl,) = [line for line in left.lines if str(line.get_label()).startswith("Amdahl")]
    assert list(amdahl.get_ydata())[-1] == pytest.approx(2.5)  # type: ignore[arg-type]
    drawn = [np.asarray(line.get_ydata()).tolist() for line in middle.lines]
    efficiency = [values for values in drawn if len(values) == 2]
    # 1.6 / 2, 2.5 / 4
    assert [80.0, 62.5] in [[pytest.approx(one) for one in pair] for pair in efficiency]
    assert "target efficiency" in {str(line.get_label()) for line in middle.lines}
    bars = [bar.get_height() for bar in right.patches if isinstance(bar, Rectangle)]
    assert bars == [91.0, 90.0]
    assert [text.get_text() for text in right.get_xticklabels()] == [
        "single\n1 device",
        "DDP\n2 devices",
    ]


def test_a_study_needs_both_speedups_and_accuracies() -> None:
    assert draw_study(comparison(TRAINED, scaling=())) is None
    assert draw_study(comparison(TRAINED[2:])) is None


def test_an_interval_that_is_not_known_has_no_whisker() -> None:
    """Not one of no length, which would be an exact value."""
    found = whiskers([2.0, 3.0, 4.0], [1.5, None, 4.5], [4.0, None, 5.0])
    np.testing.assert_array_equal(found, [[0.5, np.nan, 0.0], [2.0, np.nan, 1.0]])
