"""Predicted times: laws that a table follows come out exact, and what no law foretells has no
number.
"""

import math
from pathlib import Path

import numpy as np
import pytest

from dpscope.analysis.epoch_times.predict import Predicted, headline, prediction_tables, predictions
from dpscope.analysis.epoch_times.table import read_epoch_times
from tests.helpers.known import known
from tests.helpers.paths import ROOT

SCALING = ROOT / "tests" / "data" / "scaling"


def predicted(folder: Path, text: str, *layouts: tuple[int, int | None]) -> list[Predicted]:
    path = folder / "table.csv"
    path.write_text(text)
    return predictions(read_epoch_times(path), layouts)


def steps(times_ms: dict[int, float]) -> str:
    rows = [f"{devices},32,{ms:.12f}\n" for devices, ms in times_ms.items()]
    return "ranks,batch_per_rank,step_ms\n" + "".join(rows)


def epochs(seconds: dict[int, float], meaning: str, more: str = "", value: str = "") -> str:
    rows = [
        f"{'single' if devices == 1 else 'ddp'},64,{meaning},{devices},{s!r}{value}\n"
        for devices, s in seconds.items()
    ]
    return f"strategy,batch_size,batch_size_is,devices,epoch_seconds{more}\n" + "".join(rows)


@pytest.mark.parametrize("counts", [(2, 4), (1, 2, 4), (1, 2, 4, 6)])
def test_a_plus_b_over_n_is_exact(tmp_path: Path, counts: tuple[int, ...]) -> None:
    """106 - 6/n ms: t_1 = 100 and a ring whose all gradients take 3 ms; 105.25 at 8."""
    (one,) = predicted(tmp_path, steps({n: 106 - 6 / n for n in counts}), (8, None))
    assert one.law == "a + b/n"
    assert one.value == pytest.approx(105.25, rel=1e-11)
    assert one.error_left_out == (0.0 if len(counts) > 2 else None)


def test_a_ring_within_and_between_nodes_is_exact(tmp_path: Path) -> None:
    """50 ms, within a node 0.5 a hop and 4 x 2(g-1)/g, between nodes 1 a hop and 10 x 2(k-1)/k."""

    def step_ms(nodes: int, each: int) -> float:
        within = 0.5 * (each - 1) + 8 * (each - 1) / each
        return 50 + within + (nodes - 1) + 20 * (nodes - 1) / nodes

    placements = [(1, 1), (1, 2), (1, 4), (1, 8), (2, 8), (3, 8), (4, 8), (6, 8)]
    rows = [f"{nodes * each},{nodes},32,{step_ms(nodes, each)!r}\n" for nodes, each in placements]
    found = predicted(
        tmp_path, "ranks,nodes,batch_per_rank,step_ms\n" + "".join(rows), (64, None), (80, 10)
    )
    assert [(one.nodes, one.law) for one in found] == [(8, "ring"), (10, "ring")]
    assert [one.value for one in found] == pytest.approx([step_ms(8, 8), step_ms(10, 8)], rel=1e-9)
    assert [one.error_left_out for one in found] == pytest.approx([0.0, 0.0], abs=1e-9)


def test_nodes_are_as_full_as_those_of_the_series(tmp_path: Path) -> None:
    """A row of the same table with more devices on a node is another system's."""
    heading = "gpu,ranks_per_node,ranks,batch_per_rank,step_ms\n"
    text = f"{heading}a,4,4,8,10\na,4,16,8,12\nb,8,8,8,11\n"
    ours, _ = predicted(tmp_path, text, (16, None))
    assert (ours.nodes, ours.law, ours.value) == (4, "measured", 12.0)


def test_a_ring_at_a_fixed_global_batch_is_exact(tmp_path: Path) -> None:
    """100/n s of computing and 2 s a hop: 6.25 + 30 at 16 devices."""
    text = epochs({n: 100 / n + 2.0 * (n - 1) for n in (1, 2, 4, 8)}, "global")
    (one,) = predicted(tmp_path, text, (16, None))
    assert one.law == "ring"
    assert one.value == pytest.approx(36.25, rel=1e-9)


def test_epochs_of_a_fixed_data_set(tmp_path: Path) -> None:
    """At a fixed batch per device an epoch has 1/n of the steps; at a fixed global batch Amdahl's
    law holds.
    """
    (weak,) = predicted(tmp_path, epochs({1: 80.0, 2: 40.0, 4: 20.0}, "per_device"), (8, None))
    assert (weak.law, weak.value, weak.unit) == ("constant step", 10.0, "s")
    (strong,) = predicted(tmp_path, epochs({1: 100.0, 2: 60.0, 4: 40.0}, "global"), (8, None))
    assert strong.law == "a + b/n"
    assert strong.value == pytest.approx(30.0)
    # every device goes through all samples: as many steps on each count
    text = epochs(
        dict.fromkeys((1, 2, 4), 80.0),
        "per_device",
        ",samples_per_epoch,steps_per_epoch",
        ",6400,100",
    )
    (repeated,) = predicted(tmp_path, text, (8, None))
    assert (repeated.law, repeated.value) == ("constant step", 80.0)


def test_two_counts_have_no_row_left_out_and_no_error(tmp_path: Path) -> None:
    (two,) = predicted(tmp_path, steps({1: 100.0, 2: 104.0}), (4, None))
    assert "no row to judge" in two.reason
    assert (two.rows_left_out, two.error_left_out) == (0, None)
    assert known(two.low) < known(two.value) < known(two.high)


def test_the_band_is_the_error_on_the_count_left_out(tmp_path: Path) -> None:
    """The line through 1 and 2 is 120 at 4, where 108 was measured; two doublings away it is the
    root of 2 times that.
    """
    near, far = predicted(tmp_path, steps({1: 60.0, 2: 100.0, 4: 108.0}), (8, None), (16, None))
    error = math.log(120 / 108)
    assert (near.law, near.rows_left_out) == ("a + b/n", 1)
    assert near.error_left_out == pytest.approx(math.expm1(error))
    assert near.high == pytest.approx(known(near.value) * math.exp(error))
    assert far.low == pytest.approx(known(far.value) * math.exp(-math.sqrt(2) * error))


def test_a_band_is_no_narrower_than_public_series_err_at_that_distance(tmp_path: Path) -> None:
    """Whole milliseconds that a line meets within 0.5%: 6% at twice the largest count, 12% at four
    times and 25% at eight.
    """
    found = predicted(
        tmp_path, steps({1: 99, 2: 102, 4: 103}), (4, None), (8, None), (16, None), (32, None)
    )
    assert (found[0].law, found[0].low) == ("measured", None)
    halves = [math.log(known(one.high) / known(one.value)) for one in found[1:]]
    assert halves == pytest.approx([0.06, 0.12, 0.25], abs=1e-6)


def test_the_rounding_of_the_times_widens_the_band(tmp_path: Path) -> None:
    """4 + 36/n: 8.5 s at 8 devices, with no error on the count left out. Of the times in whole
    seconds each may be off by 0.5, and the line through 1, 2 and 4 by the root of their squares.
    """
    text = (
        "strategy,batch_size,devices,epoch_seconds\nsingle,128,1,40\nddp,128,2,22\nddp,128,4,13\n"
    )
    (one,) = predicted(tmp_path, text, (8, None))
    assert one.value == pytest.approx(8.5)
    assert one.error_left_out == 0.0
    moved = []
    for index in range(3):
        seconds = np.array([40.0, 22.0, 13.0])
        seconds[index] += 0.5
        terms = np.array([[1, 1], [1, 1 / 2], [1, 1 / 4]]) / seconds[:, None]
        a, b = np.linalg.lstsq(terms, np.ones(3), rcond=None)[0]
        moved.append(math.log((a + b / 8) / 8.5))
    half = math.sqrt(sum(change**2 for change in moved))
    assert half > math.log(13.5 / 13)
    assert one.high == pytest.approx(8.5 * math.exp(half))
    assert one.low == pytest.approx(8.5 * math.exp(-half))
    (fine,) = predicted(tmp_path, text.replace(",22\n", ",22.00\n"), (8, None))
    assert known(fine.high) == pytest.approx(8.5 * math.exp(0.06))
    stated = "strategy,batch_size,devices,epoch_seconds,resolution_s\nsingle,128,1,40,0\nddp,128,2,22,0\nddp,128,4,13,0\n"
    (exact,) = predicted(tmp_path, stated, (3, None))
    assert exact.value == pytest.approx(16)
    assert (exact.low, exact.high) == (None, None)
    assert "shows no band" in exact.reason


def test_a_time_that_is_shorter_than_on_fewer_devices_is_explained(tmp_path: Path) -> None:
    """100, 101 and 106 ms: the line ends below 106. An epoch of a fixed data set falls as it is."""
    (short,) = predicted(tmp_path, steps({1: 100, 2: 101, 4: 106}), (8, None))
    assert known(short.value) < 106
    assert short.reason.startswith("shorter than on 4: the law is fitted to all counts")
    (table,) = prediction_tables([short])
    assert table.notes[-1].endswith(f"N 8: {short.reason}.")
    (longer,) = predicted(tmp_path, steps({1: 100, 2: 103, 4: 104.5}), (8, None))
    (epoch,) = predicted(tmp_path, epochs({1: 80.0, 2: 40.0, 4: 21.0}, "per_device"), (8, None))
    assert longer.reason == epoch.reason == ""


@pytest.mark.parametrize(
    ("text", "layout", "reason"),
    [
        (steps({1: 100, 2: 100, 4: 200}), (8, None), "no law fits"),
        (steps({2: 100, 4: 150}), (8, None), "left out of its fit by more than 15%"),
        (steps({4: 100}), (8, None), "one device count shows no law"),
        (
            steps({1: 100, 2: 101, 4: 102}),
            (33, None),
            "more than 8 times the largest measured count (4)",
        ),
        (steps({1: 100, 2: 101, 4: 102}), (16, 2), "no row between nodes was measured"),
    ],
)
def test_no_number_without_a_law(
    tmp_path: Path, text: str, layout: tuple[int, int | None], reason: str
) -> None:
    (one,) = predicted(tmp_path, text, layout)
    assert (one.value, one.low, one.high, one.law) == (None,) * 4
    assert reason in one.reason


def test_a_law_that_misses_keeps_its_error(tmp_path: Path) -> None:
    """The constant step of 100 ms misses 150 by a third; that of 150 misses 100 by half."""
    (one,) = predicted(tmp_path, steps({2: 100, 4: 150}), (8, None))
    assert one.error_left_out == pytest.approx(0.5)


def test_a_reason_stands_once_after_its_series_and_counts(tmp_path: Path) -> None:
    """The table of a study holds the rows of all of its strategies."""
    text = (
        "strategy,batch_size,devices,epoch_seconds\nddp,128,2,22\nddp,128,4,13\ndp,128,2,10\n"
        "dp,64,4,70\nddp,64,2,10\nddp,64,4,10\n"
    )
    predictions_of = predicted(tmp_path, text, (8, None), (16, None))
    (table,) = prediction_tables(predictions_of)
    assert [row[:3] for row in table.rows[:2]] == [("ddp", "128", "8"), ("ddp", "128", "16")]
    notes = [note for note in table.notes if "one device count shows no law" in note]
    assert notes == [
        "dp, batch 128, N 8 and 16; dp, batch 64, N 8 and 16: one device count shows no law: measure another at the same "
        "batch."
    ]
    count, at_eight, at_sixteen = headline(predictions_of).splitlines()
    assert count == "2 of 8 times predicted."
    assert at_eight.startswith("Table, ddp, batch 64, N 8: 10 s (")
    assert at_sixteen.startswith("Table, ddp, batch 64, N 16: 10 s (")
