"""Scaling of a run's cells: series, laws, strong against weak, targets, and the figure."""

import json
from dataclasses import replace

import numpy as np
import pytest

from dpscope.analysis.cells.comparison import Comparison
from dpscope.analysis.cells.row import CellRow
from dpscope.analysis.cells.scaling import ScalingSeries, scaling_choices, scaling_series
from dpscope.analysis.findings.comparisons import judge_target, strong_or_weak, superlinear_findings
from dpscope.analysis.output.run_json import scaling_records
from dpscope.analysis.report.strategy_tables import scaling_table
from dpscope.analysis.runs.spreads import step_spread
from dpscope.analysis.stats.samples import Estimate
from dpscope.analysis.stats.scaling_laws import amdahl_speedup
from dpscope.analysis.traces.ranks.job import NO_TABLES, Job
from dpscope.profiling.records.run import Cell
from dpscope.profiling.records.strategies import CellStrategy
from tests.helpers.known import known
from tests.helpers.run_cells import cell_data, timed_cell


def steps(
    strategy: CellStrategy, devices: int, batch_size: int, step_us: float, count: int = 8
) -> Job:
    cell = Cell(strategy=strategy, devices=devices, batch_size=batch_size)
    noise = np.random.default_rng(devices * batch_size).normal(1, 0.001, (2, count))
    return cell_data(cell, (step_us * noise).tolist(), NO_TABLES.steps)


def series(cells: list[Job], singles: dict[int, Job]) -> tuple[ScalingSeries, ...]:
    return scaling_series(cells, lambda _: singles, step_spread([*singles.values(), *cells]))


SINGLES = {8: steps("single", 1, 8, 1000.0), 16: steps("single", 1, 16, 1800.0)}


def comparison(*found: ScalingSeries) -> Comparison:
    return Comparison(scaling=found)


def test_weak_and_strong_series_with_intervals() -> None:
    cell = steps("ddp", 2, 8, 1250.0)
    weak, strong = series([cell], SINGLES)
    # weak: 2 x 1,000 / 1,250 = 1.6; strong: the global batch is 16: 1,800 / 1,250 = 1.44
    assert (weak.scaling, weak.batch_size, weak.label) == ("weak", 8, "ddp weak, b = 8")
    assert weak.points[0].speedup.value == pytest.approx(1.6, rel=0.01)
    assert weak.points[0].efficiency.value == pytest.approx(0.8, rel=0.01)
    assert (strong.scaling, strong.batch_size) == ("strong", 16)
    assert strong.points[0].speedup.value == pytest.approx(1.44, rel=0.01)
    assert weak.points[0].speedup.count == 16
    few = {
        8: steps("single", 1, 8, 1000.0, count=2)
    }  # the number of steps is that of the side with fewer, as of any ratio
    assert series([cell], few)[0].points[0].speedup.count == 4
    assert 1.42 < known(strong.points[0].speedup.low) < known(strong.points[0].speedup.high) < 1.46
    # Karp-Flatt: (1/1.6 - 1/2) / (1/2) = 0.25
    assert weak.points[0].serial_fraction == pytest.approx(0.25, abs=0.02)
    assert known(weak.fit).law == "karp_flatt"
    (record, _) = json.loads(json.dumps(scaling_records(comparison(weak, strong))))
    assert (record["strategy"], record["scaling"], record["law"]["name"]) == (
        "ddp",
        "weak",
        "karp_flatt",
    )
    assert record["points"][0]["efficiency"]["value"] == pytest.approx(0.8, rel=0.01)
    table = scaling_table(comparison(weak, strong))
    assert len(table.notes) == 1  # one count each: no law
    assert [row[:2] for row in table.rows] == [
        ("ddp weak, b = 8", "2"),
        ("ddp strong, G = 16", "2"),
    ]


def test_three_counts_fit_a_law() -> None:
    cells = [steps("ddp", n, 16 // n, 1800.0 / amdahl_speedup(0.1, n)) for n in (2, 4, 8)]
    (strong,) = [one for one in series(cells, {16: SINGLES[16]}) if one.scaling == "strong"]
    assert known(strong.fit).law == "usl"
    (law,) = scaling_table(comparison(strong)).notes[1:]
    assert law.startswith("ddp strong, G = 16: USL, contention 0.100 (")
    assert "coherency 0.000 (" in law
    # 16 devices: 1 / (0.1 + 0.9 / 16) = 6.4
    assert "speedup on 16: 6.40 (" in law


def test_fewer_than_5_steps_have_no_interval_and_no_verdict() -> None:
    cell = cell_data(
        Cell(strategy="ddp", devices=2, batch_size=8), [[1250.0, 1250.0]], NO_TABLES.steps
    )
    weak, _ = series([cell], SINGLES)
    assert weak.points[0].speedup.low is None
    (finding,) = judge_target([weak], 0.5)
    assert "too few steps" in finding.message


@pytest.mark.parametrize(
    ("target", "severity", "said"),
    [(0.7, "info", "reached on 2 devices"), (0.9, "warning", "missed on 2 devices")],
)
def test_target_efficiency(target: float, severity: str, said: str) -> None:
    weak, _ = series([steps("ddp", 2, 8, 1250.0)], SINGLES)  # 80%
    (finding,) = judge_target([weak], target)
    assert (finding.severity, finding.code) == (severity, "target_efficiency")
    assert said in finding.message


def test_strong_or_weak() -> None:
    # batch 16 on 2 devices: weak 16 each, 2,000 us for 32 samples; strong 8 each, 1,250 us for 16
    # samples: 16 against 12.8 samples per ms: 1.25 times
    cells = [steps("ddp", 2, 16, 2000.0), steps("ddp", 2, 8, 1250.0)]
    (choice,) = scaling_choices(cells, step_spread(cells))
    assert (choice.weak, choice.strong, choice.batch_size) == ("ddp-d2-b16", "ddp-d2-b8", 16)
    assert choice.ratio.value == pytest.approx(1.25, rel=0.01)
    text = "ddp-d2-b16 (weak) has 1.25x the throughput of ddp-d2-b8 (strong) (95%"
    assert text in strong_or_weak(choice).message
    for ratio, text in (
        (Estimate(0.8, 0.75, 0.82, 20), "(95% interval 0.75 to 0.82): worse"),
        (Estimate(1.1, 0.9, 1.2, 20), "no significant difference"),
        (Estimate(1.1, None, None, 4), "not judged"),
    ):
        assert text in strong_or_weak(replace(choice, ratio=ratio)).message


def test_a_series_goes_on_to_more_nodes_and_the_same_devices_spread_wider_are_another() -> None:
    """2 and 4 GPUs of one node and 8 of two are one series; 2 x 2 is a point separate from 1 x
    4.
    """
    cells = [
        timed_cell(Cell("ddp", devices, 8, nodes=nodes), step_us, step_us)
        for devices, nodes, step_us in (
            (2, 1, 1100.0),
            (4, 1, 1200.0),
            (8, 2, 1500.0),
            (4, 2, 1400.0),
        )
    ]
    weak = [one for one in series(cells, {8: SINGLES[8]}) if one.scaling == "weak"]
    assert [[point.cell for point in one.points] for one in weak] == [
        ["ddp-d2-b8", "ddp-d4-b8", "ddp-d8-n2-b8"],
        ["ddp-d4-n2-b8"],
    ]
    assert [one.label for one in weak] == ["ddp weak, b = 8", "ddp over 2 nodes weak, b = 8"]
    # 4 x 1,000 / 1,200 and 4 x 1,000 / 1,400
    assert [one.points[-1].speedup.value for one in weak] == pytest.approx(
        [16 / 3, 20 / 7], rel=0.01
    )


def test_more_than_n_times_the_throughput_on_n_devices_is_a_warning() -> None:
    """4 x 1,000 / 900 with an interval; 5.07 on 2 devices from one repeat; 1.05 x 2 from one repeat
    is chance.
    """
    four = comparison(*series([steps("ddp", 4, 8, 900.0)], SINGLES))
    (warning,) = superlinear_findings(four)
    assert (warning.severity, warning.code) == ("warning", "superlinear_speedup")
    assert warning.message.startswith(
        "ddp-d4-b8: 4.44x the throughput of one device on 4 devices (95% interval 4.4"
    )
    rows = {"ddp-d2-b8": CellRow(cell="ddp-d2-b8", strategy="ddp", devices=2)}
    for value, count in ((5.07, 1), (2.1, 0)):
        once = Comparison(rows, over_itself={"ddp-d2-b8": Estimate(value, None, None, 50)})
        assert len(list(superlinear_findings(once))) == count
