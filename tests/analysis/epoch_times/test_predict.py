"""Predicted times: laws that a table follows come out exact, and what no law foretells has no
number.
"""

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

from dpscope.analysis.epoch_times.predict import Predicted, predictions
from dpscope.analysis.epoch_times.report import run_prediction
from dpscope.analysis.epoch_times.table import read_epoch_times
from dpscope.analysis.text.text_table import TextTable
from dpscope.profiling.store.errors import DpscopeError
from tests.helpers.paths import PUBLISHED, ROOT

SCALING = ROOT / "tests" / "data" / "scaling"


def predicted(folder: Path, text: str, *layouts: tuple[int, int | None]) -> list[Predicted]:
    path = folder / "table.csv"
    path.write_text(text)
    return predictions(read_epoch_times(path), layouts)


def steps(times_ms: dict[int, float]) -> str:
    rows = [f"{devices},32,{ms!r}\n" for devices, ms in times_ms.items()]
    return "ranks,batch_per_rank,step_ms\n" + "".join(rows)


def epochs(seconds: dict[int, float], meaning: str, more: str = "", value: str = "") -> str:
    rows = [
        f"{'single' if devices == 1 else 'ddp'},64,{meaning},{devices},{s!r}{value}\n"
        for devices, s in seconds.items()
    ]
    return f"strategy,batch_size,batch_size_is,devices,epoch_seconds{more}\n" + "".join(rows)


@pytest.mark.parametrize("counts", [(2, 4), (1, 2, 4), (1, 2, 3, 4, 6)])
def test_a_flat_table_stays_flat(tmp_path: Path, counts: tuple[int, ...]) -> None:
    found = predicted(tmp_path, steps(dict.fromkeys(counts, 100.0)), (8, None), (16, None))
    assert [(one.value, one.low, one.high, one.error_left_out, one.unit) for one in found] == [
        (100.0, 100.0, 100.0, 0.0, "ms")
    ] * 2
    assert found[0].measured == counts


@pytest.mark.parametrize("counts", [(2, 4), (1, 2, 4), (1, 2, 4, 6)])
def test_a_plus_b_over_n_is_exact(tmp_path: Path, counts: tuple[int, ...]) -> None:
    """106 - 6/n ms: t_1 = 100 and a ring whose all gradients take 3 ms; 105.25 at 8."""
    (one,) = predicted(tmp_path, steps({n: 106 - 6 / n for n in counts}), (8, None))
    assert one.law == "a + b/n"
    assert one.value == pytest.approx(105.25, rel=1e-11)
    assert one.error_left_out == (
        0.0 if len(counts) > 2 else pytest.approx(104.5 / 103 - 1, rel=0.1)
    )


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


def test_the_band_is_the_error_on_the_count_left_out(tmp_path: Path) -> None:
    """The line through 1 and 2 is 103.5 at 4, where 103 was measured; two doublings away it is the
    root of 2 times that.
    """
    near, far = predicted(tmp_path, steps({1: 99.0, 2: 102.0, 4: 103.0}), (8, None), (16, None))
    error = math.log(103.5 / 103)
    assert near.error_left_out == pytest.approx(math.expm1(error))
    assert near.value is not None
    assert near.high == pytest.approx(near.value * math.exp(error))
    assert far.value is not None
    assert far.low == pytest.approx(far.value * math.exp(-math.sqrt(2) * error))


def test_counts_between_and_below(tmp_path: Path) -> None:
    between, below = predicted(
        tmp_path, steps({2: 103.0, 4: 104.5, 8: 105.25, 16: 105.625}), (6, None), (1, None)
    )
    assert between.value == pytest.approx(105.0)
    assert below.value == pytest.approx(100.0)


@pytest.mark.parametrize(
    ("text", "layout", "reason"),
    [
        (steps({1: 100, 2: 100, 4: 200}), (8, None), "misses the rows left out by 100%"),
        (steps({2: 100, 4: 150}), (8, None), "(constant step) misses the rows left out by 50%"),
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


def test_public_series() -> None:
    """The V100's 8 devices from up to 4: 104 and 179 ms were measured. A line in 1/n gives 104.0
    and 177.7.
    """
    table = read_epoch_times(SCALING / "ddp_v100_pytorch_benchmark.csv")
    few = table._replace(rows=tuple(row for row in table.rows if row.devices <= 4))
    found = predictions(few, [(8, 1)])
    assert [one.study for one in found] == ["resnet50, 25", "resnet101, 25"]
    assert [one.value for one in found] == pytest.approx([104, 177.5], rel=2e-3)


def test_a_measured_layout_is_shown_as_measured_and_each_only_once() -> None:
    """On 16 V100s, two nodes of eight, 104 and 179 ms were measured."""
    table = read_epoch_times(SCALING / "ddp_v100_pytorch_benchmark.csv")
    found = predictions(table, [(16, None), (16, 2), (32, None), (32, 4)])
    assert [(one.devices, one.nodes) for one in found] == [(16, 2), (32, 4)] * 2
    measured, predicted_32, *_ = found
    assert (measured.value, measured.low, measured.high, measured.law) == (
        104,
        None,
        None,
        "measured",
    )
    assert measured.error_left_out is None
    assert measured.reason == "measured by the table, so without a band"
    assert found[2].value == 179
    assert predicted_32.law != "measured"
    assert predicted_32.low is not None
    (elsewhere, _) = predictions(table, [(16, 4)])  # as many devices on other nodes
    assert elsewhere.law != "measured"


def test_formats_and_texts_that_are_no_counts() -> None:
    times = PUBLISHED / "epoch_times.csv"
    found = json.loads(str(run_prediction(times, "8,2x8", "json")))["predictions"]
    assert len(found) == 2 * 17
    assert {tuple(one) for one in found} == {Predicted._fields}
    table = run_prediction(times, "8", "table")
    assert isinstance(table, TextTable)
    assert any("coursework_l4 (first) batch 512, N 8: the best law" in note for note in table.notes)
    for text in ("", "x", "0", "2.5", "1x8", "2x0"):
        with pytest.raises(DpscopeError, match="--predict"):
            run_prediction(times, text, "json")


def test_a_table_of_one_device_has_nothing_to_predict(tmp_path: Path) -> None:
    (tmp_path / "one.csv").write_text("strategy,batch_size,devices,epoch_seconds\nsingle,32,1,10\n")
    table = run_prediction(tmp_path / "one.csv", "8", "table")
    assert isinstance(table, TextTable)
    assert (table.rows, table.notes) == (
        (),
        ("No row of several devices has a time: nothing to predict.",),
    )


@pytest.mark.process
def test_the_command_predicts(tmp_path: Path) -> None:
    (tmp_path / "steps.csv").write_text(steps({1: 100.0, 2: 100.0, 4: 100.0}))
    command = [
        sys.executable,
        "-m",
        "dpscope.launch.cli",
        "estimate",
        "steps.csv",
        "--predict",
        "8",
    ]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "constant step" in ended.stdout
    assert "100   100   100" in ended.stdout
