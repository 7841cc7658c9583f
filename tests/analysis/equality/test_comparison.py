"""Comparisons of trainings with two parameters, `a` of two elements and `b` of one; batch 4 on 2
devices.
"""

import math
from collections import Counter
from typing import Any

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray

from dpscope.analysis.equality.comparison import compare_trainings
from dpscope.analysis.equality.data import (
    EqualityData,
    ProcessData,
    RecordedTraining,
    sample_difference,
)
from dpscope.analysis.equality.differences import Differences, tolerances, training_differences
from dpscope.analysis.equality.result import EqualityReport, What
from dpscope.profiling.records.config import Optimizer, Workload
from dpscope.profiling.records.equality import (
    EqualityConfig,
    EqualityJob,
    EqualitySettings,
    ParameterRecord,
    RankRecord,
)
from dpscope.profiling.records.matrix import ResolvedMatrix
from dpscope.profiling.records.run import Cell
from tests.helpers.known import known

SINGLE = Cell(strategy="single", devices=1, batch_size=4)
DP = Cell(strategy="dp-host", devices=2, batch_size=2)
DDP = Cell(strategy="ddp", devices=2, batch_size=2)
STEPS = 3
Values = list[list[float]]
# a's two elements and b's, per step
PLAIN: Values = [[3.0, 4.0, 0.0], [6.0, 8.0, 0.0], [3.0, 4.0, 0.0]]


def process(
    gradients: Values, rank: int = 0, ranks: int = 1, losses: list[float] | None = None
) -> ProcessData:
    """A process with the same values as gradients and weights."""
    values = np.array(gradients)
    share = 4 // ranks
    parts = (values[:, :2], values[:, 2:])
    arrays: dict[str, NDArray[Any]] = {
        "loss": np.array(losses or [1.0] * STEPS),
        "sample_step": np.repeat(np.arange(STEPS), share),
        "sample_index": np.tile(np.arange(rank * share, (rank + 1) * share), STEPS)
        + np.repeat(np.arange(STEPS), share) * 4,
    }
    for what in ("gradient", "weight"):
        arrays[f"{what}_hash"] = np.array(
            [[hash(tuple(row)) % 2**63 for row in part] for part in parts], np.uint64
        ).T
        arrays[f"{what}_norm"] = np.stack([np.linalg.norm(part, axis=1) for part in parts], axis=1)
        arrays |= {f"{what}.{place}": part for place, part in enumerate(parts)}
    parameters = (
        ParameterRecord(name="a", elements=2, stored=2),
        ParameterRecord(name="b", elements=1, stored=1),
    )
    return ProcessData(RankRecord(rank, STEPS, parameters, ()), arrays)


def training(cell: Cell, *ranks: ProcessData) -> RecordedTraining:
    return RecordedTraining(cell, ranks)


def compared(*others: RecordedTraining) -> EqualityReport:
    """The report on trainings and a single device of which all values are PLAIN."""
    return compare_trainings(data(training(SINGLE, process(PLAIN)), *others))


def scaled(factor: float) -> Values:
    return [[value * factor for value in row] for row in PLAIN]


def settings(*cells: Cell) -> EqualitySettings:
    matrix = ResolvedMatrix(devices=(2,), batch_sizes=(4,))
    config = EqualityConfig(Workload(device="cpu"), Optimizer(), matrix, STEPS, timeout_s=900.0)
    jobs = tuple(EqualityJob(cell=cell, trainings=("compared",)) for cell in cells)
    return EqualitySettings(
        config=config, device="cpu", threads_per_process=1, precision="float64", jobs=jobs,
    )  # fmt: skip


def data(*compared: RecordedTraining) -> EqualityData:
    moved = training(compared[0].cell, process(scaled(1 + 1e-12)))
    return EqualityData(settings(*(one.cell for one in compared)), compared, moved)


def test_a_difference_is_relative_to_its_tensor_or_to_all() -> None:
    other = [[3.0, 4.5, 0.1], [6.0, 8.0, 0.0], [3.0, 4.0, 0.0]]
    found = training_differences(training(SINGLE, process(PLAIN)), training(DP, process(other)))
    assert list(found) == ["loss", "gradient", "weight"]
    gradients = found["gradient"]
    assert gradients.tensors == ("a", "b")
    # a: sqrt(0^2 + 0.5^2) / sqrt(3^2 + 4^2). b is 0 and counts as the root mean square of 3, 4, 0:
    # 0.1 / sqrt(25 / 3).
    assert gradients.relative[0].tolist() == pytest.approx([0.1, 0.1 / math.sqrt(25 / 3)])
    assert not gradients.relative[1:].any()
    assert gradients.same_bits.tolist() == [[False, False], [True, True], [True, True]]
    assert not found["loss"].relative.any()


def test_tolerance_never_falls_and_has_a_floor() -> None:
    def of(*relative: float) -> Differences:
        column = np.array(relative)[:, None]
        return Differences(("x",), column, column == 0)

    measured: dict[What, Differences] = {
        "loss": of(0, 0, 0),
        "gradient": of(1e-12, 3e-12, 2e-12),
        "weight": of(1e-12, 1e-3, 2e-3),
    }
    found = tolerances(measured, settings(SINGLE, DP))
    assert found.tolerated["loss"].tolist() == [10 * 3 * 2**-53] * 3  # (4 - 1) u
    assert found.tolerated["gradient"].tolist() == pytest.approx([1e-11, 3e-11, 3e-11])
    assert found.tolerated["weight"].tolist() == pytest.approx([1e-11, 1e-2, 2e-2])
    assert found.judged == 2
    diverged: dict[What, Differences] = {**measured, "loss": of(0, math.nan, 0)}
    assert tolerances(diverged, settings(SINGLE, DP)).judged == 1


def test_differences_within_the_tolerance_are_equal_and_beyond_it_reported() -> None:
    # The reference moves by 1e-12 of itself: 1e-11 are tolerated.
    report = compared(training(DP, process(scaled(1 + 5e-12))))
    assert (report.pairs[0].verdict, report.sound) == ("equal", True)
    report = compared(training(DP, process([*PLAIN[:2], [3.0, 4.0 + 1e-9, 0.0]])))
    first = known(report.pairs[0].first_difference)
    assert (first.step, first.what, first.tensor) == (2, "gradient", "a")
    assert first.relative == pytest.approx(1e-9 / 5, rel=1e-4)
    assert [finding.code for finding in report.findings if finding.severity == "error"] == [
        "unexplained_difference"
    ]
    assert not report.sound
    (summed, *_) = compared(training(DP, process([PLAIN[0], [12.0, 16.0, 0.0], PLAIN[2]]))).findings
    assert "from step 1 on: the gradient of a by 1 of its norm" in summed.message
    assert "all its gradients are 2 times as large: summed" in summed.message
    report = compared(training(DP, process([PLAIN[0], [math.nan, 8.0, 0.0], PLAIN[2]])))
    first = known(report.pairs[0].first_difference)
    assert (report.pairs[0].verdict, first.step, first.relative) == ("different", 1, None)
    assert msgspec.json.decode(msgspec.json.encode(report), type=EqualityReport) == report


def test_the_rank_that_differs_is_named() -> None:
    wrong_values = [PLAIN[0], [1.0, 1.0, 1.0], PLAIN[2]]
    ranks = [process(wrong_values if rank == 1 else PLAIN, rank, 2) for rank in (0, 1)]
    report = compare_trainings(data(training(DP, process(PLAIN)), training(DDP, *ranks)))
    (result,) = report.ranks
    first = known(result.first_difference)
    assert (result.same_bits, first.step, first.what, result.ranks_apart) == (
        False,
        1,
        "gradient",
        (1,),
    )
    (message,) = (finding.message for finding in report.findings if finding.severity == "error")
    assert "ddp-d2-b2: from step 1 on rank 1 has different gradients from rank 0's" in message


def test_samples_that_differ() -> None:
    one = [Counter([5, 6]), Counter([7, 8])]
    assert sample_difference(one, [Counter([6, 5]), Counter([8, 7])]) is None  # in any order
    # step, missing, extra
    assert sample_difference(one, [Counter([5, 6]), Counter([8, 8])]) == (1, [7], [8])
    ranks = [process(PLAIN, rank, 2) for rank in (0, 1)]
    assert training(DDP, *ranks).samples() == training(SINGLE, process(PLAIN)).samples()
