"""Comparisons of trainings with two parameters, `a` of two elements and `b` of one; batch 4 on 2 devices."""

import math
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray

from dpscope.analysis.equality.comparison import compare_trainings
from dpscope.analysis.equality.data import (
    EqualityData,
    ProcessData,
    RecordedTraining,
    lost_samples,
    sample_difference,
)
from dpscope.analysis.equality.differences import judged_steps, output_differences, tolerances, training_differences
from dpscope.analysis.equality.result import EqualityReport
from dpscope.analysis.output.equality import headline
from dpscope.profiling.records.config import Optimizer, Workload
from dpscope.profiling.records.equality import (
    EqualityConfig,
    EqualityJob,
    EqualitySettings,
    EqualityTraining,
    ParameterRecord,
    RankRecord,
    TrainingKind,
)
from dpscope.profiling.records.matrix import ResolvedMatrix
from dpscope.profiling.records.run import Cell
from tests.helpers.known import known

SINGLE = Cell(strategy="single", devices=1, batch_size=4)
DP = Cell(strategy="dp-host", devices=2, batch_size=2)
DDP = Cell(strategy="ddp", devices=2, batch_size=2)
STEPS = 3
Values = list[list[float]]
PLAIN: Values = [[3.0, 4.0, 0.0], [6.0, 8.0, 0.0], [3.0, 4.0, 0.0]]  # a's two elements and b's, per step


def process(
    gradients: Values,
    rank: int = 0,
    ranks: int = 1,
    outputs: dict[str, float] | None = None,
    losses: list[float] | None = None,
) -> ProcessData:
    """A process with the same values as gradients and weights; every module's output is one number for all samples."""
    values = np.array(gradients)
    share = 4 // ranks
    index = np.tile(np.arange(rank * share, (rank + 1) * share), STEPS) + np.repeat(np.arange(STEPS), share) * 4
    called = outputs or {"conv": 1.0, "bn": 2.0, "fc": 3.0}
    parts = (values[:, :2], values[:, 2:])
    arrays: dict[str, NDArray[Any]] = {
        "loss": np.array(losses or [1.0] * STEPS),
        "sample_step": np.repeat(np.arange(STEPS), share),
        "sample_epoch": np.zeros(STEPS * share, dtype=np.int64),
        "sample_index": index,
        "sample_fingerprint": index.astype(np.uint64),
        "sample_entered": np.ones(STEPS * share, dtype=np.int64),
    }
    for what in ("gradient", "weight"):
        arrays[f"{what}_hash"] = np.array([[hash(tuple(row)) % 2**63 for row in part] for part in parts], np.uint64).T
        arrays[f"{what}_norm"] = np.stack([np.linalg.norm(part, axis=1) for part in parts], axis=1)
        arrays |= {f"{what}.{place}": part for place, part in enumerate(parts)}
    arrays |= {f"output.{place}": np.full((share, 2), value) for place, value in enumerate(called.values())}
    parameters = ParameterRecord(name="a", elements=2, stored=2), ParameterRecord(name="b", elements=1, stored=1)
    return ProcessData(RankRecord(rank, STEPS, parameters, tuple(called), ("bn",), (), shuffled=True), arrays)


def training(cell: Cell, *ranks: ProcessData, kind: TrainingKind = "compared") -> RecordedTraining:
    return RecordedTraining(cell, kind, ranks)


def compared(*others: RecordedTraining, in_shares: RecordedTraining | None = None) -> EqualityReport:
    """The report on trainings and a single device of which all values are PLAIN."""
    return compare_trainings(data(training(SINGLE, process(PLAIN)), *others, in_shares=in_shares))


def scaled(factor: float) -> Values:
    return [[value * factor for value in row] for row in PLAIN]


def settings(*cells: Cell) -> EqualitySettings:
    matrix = ResolvedMatrix(devices=(2,), batch_sizes=(4,))
    config = EqualityConfig(Workload(device="cpu"), Optimizer(), matrix, STEPS, timeout_s=900.0)
    jobs = tuple(EqualityJob(cell=cell, trainings=(EqualityTraining(kind="compared"),)) for cell in cells)
    return EqualitySettings(
        config=config, device="cpu", threads_per_process=1, precision="float64", freeze_batch_norm=False,
        sync_batch_norm=False, jobs=jobs,
    )  # fmt: skip


def data(*compared: RecordedTraining, in_shares: RecordedTraining | None = None) -> EqualityData:
    moved = training(compared[0].cell, process(scaled(1 + 1e-12)), kind="rounding")
    return EqualityData(settings(*(one.cell for one in compared)), compared, moved, in_shares, rounding_in_shares=None)


def test_a_difference_is_relative_to_its_tensor_or_to_all() -> None:
    other = [[3.0, 4.5, 0.1], [6.0, 8.0, 0.0], [3.0, 4.0, 0.0]]
    found = training_differences(training(SINGLE, process(PLAIN)), training(DP, process(other)))
    first = found[(found["step"] == 0) & (found["what"] == "gradient")].set_index("tensor")
    # a: sqrt(0^2 + 0.5^2) / sqrt(3^2 + 4^2). b is 0 and counts as the root mean square of 3, 4, 0: 0.1 / sqrt(25 / 3).
    assert first["relative"]["a"] == pytest.approx(0.1)
    assert first["absolute"]["a"] == pytest.approx(0.5)
    assert first["relative"]["b"] == pytest.approx(0.1 / math.sqrt(25 / 3))
    assert found[found["step"] > 0]["relative"].eq(0).all()
    assert found[found["step"] > 0]["same_bits"].all()
    assert not found[(found["step"] == 0) & (found["what"] != "loss")]["same_bits"].any()


def test_losses_are_the_ranks_mean_and_outputs_compared_sample_by_sample() -> None:
    ranks = [process(PLAIN, rank, 2, losses=losses) for rank, losses in enumerate(([1.0, 2.0, 3.0], [3.0, 2.0, 5.0]))]
    assert training(DDP, *ranks).losses().tolist() == [2.0, 2.0, 4.0]
    shares = training(DDP, *(process(PLAIN, rank, 2, {"conv": 1.0, "bn": 2.5, "fc": 3.0}) for rank in (1, 0)))
    found = output_differences(training(SINGLE, process(PLAIN)), shares)
    assert found == pytest.approx(
        {"conv": 0.0, "bn": 0.25, "fc": 0.0}
    )  # bn: eight elements off by 0.5, of norm 2 sqrt(8)


def test_tolerance_never_falls_and_has_a_floor() -> None:
    measured = pd.DataFrame(
        {
            "step": [0, 1, 2] * 3,
            "what": np.repeat(["loss", "gradient", "weight"], 3),
            "relative": [0.0, 0.0, 0.0, 1e-12, 3e-12, 2e-12, 1e-12, 1e-3, 2e-3],
        }
    )
    found = tolerances(measured, settings(SINGLE, DP))
    assert found["loss"].tolist() == [10 * 3 * 2**-53] * 3  # (4 - 1) u
    assert found["gradient"].tolist() == pytest.approx([1e-11, 3e-11, 3e-11])
    assert found["weight"].tolist() == pytest.approx([1e-11, 1e-2, 2e-2])
    assert judged_steps(found, measured) == 2
    diverged = measured.assign(relative=[0.0, math.nan, *measured["relative"][2:]])
    assert judged_steps(found, diverged) == 1


def test_differences_within_the_tolerance_are_equal_and_beyond_it_reported() -> None:
    # The reference moves by 1e-12 of itself: 1e-11 are tolerated.
    report = compared(training(DP, process(scaled(1 + 5e-12))))
    assert (report.pairs[0].verdict, report.sound) == ("equal", True)
    report = compared(training(DP, process([*PLAIN[:2], [3.0, 4.0 + 1e-9, 0.0]])))
    first = known(report.pairs[0].first_difference)
    assert (first.step, first.what, first.tensor) == (2, "gradient", "a")
    assert first.relative == pytest.approx(1e-9 / 5, rel=1e-4)
    assert [finding.code for finding in report.findings if finding.severity == "error"] == ["unexplained_difference"]
    assert not report.sound
    (summed, *_) = compared(training(DP, process([PLAIN[0], [12.0, 16.0, 0.0], PLAIN[2]]))).findings
    assert "from step 1 on: the gradient of a by 1 of its norm" in summed.message
    assert "all its gradients are 2 times as large: summed" in summed.message
    report = compared(training(DP, process([PLAIN[0], [math.nan, 8.0, 0.0], PLAIN[2]])))
    first = known(report.pairs[0].first_difference)
    assert (report.pairs[0].verdict, first.step, first.relative) == ("different", 1, None)
    assert msgspec.json.decode(msgspec.json.encode(report), type=EqualityReport) == report


BY_SHARE = {"conv": 1.0, "bn": 2.5, "fc": 3.5}


@pytest.mark.parametrize(
    ("outputs", "in_shares", "verdict"),
    [
        (BY_SHARE, 1.5, "explained"),
        ({"conv": 1.1, "bn": 2.5, "fc": 3.5}, 1.5, "different"),  # they differ before batch norm
        (BY_SHARE, 1.4, "different"),  # a single device in shares differs, too
        (BY_SHARE, None, "different"),  # without one there is no evidence
    ],
)
def test_batch_norm_explains_a_difference_only_with_evidence(
    outputs: dict[str, float], in_shares: float | None, verdict: str
) -> None:
    shares = None
    if in_shares is not None:
        shares = training(SINGLE, process(scaled(in_shares), outputs=BY_SHARE), kind="in_shares")
    report = compared(training(DP, process(scaled(1.5), outputs=outputs)), in_shares=shares)
    assert report.pairs[0].verdict == verdict
    assert report.sound == (verdict == "explained")


def test_the_rank_that_differs_is_named() -> None:
    wrong_values = [PLAIN[0], [1.0, 1.0, 1.0], PLAIN[2]]
    ranks = [process(wrong_values if rank == 1 else PLAIN, rank, 2) for rank in (0, 1)]
    report = compare_trainings(data(training(DP, process(PLAIN)), training(DDP, *ranks)))
    (result,) = report.ranks
    assert (result.same_bits, result.first_step, result.what, result.ranks_apart) == (False, 1, "gradient", (1,))
    (message,) = (finding.message for finding in report.findings if finding.severity == "error")
    assert "ddp-d2-b2: from step 1 on rank 1 has different gradients from rank 0's" in message


def test_without_a_judged_step_nothing_is_equal() -> None:
    """A training that is not finite from its first step on shows nothing, whatever the other one does."""
    diverged = [[math.inf] * 3] * STEPS
    trained = data(training(SINGLE, process(diverged)), training(DP, process(PLAIN)))
    report = compare_trainings(replace(trained, rounding=training(SINGLE, process(diverged), kind="rounding")))
    assert [(pair.verdict, pair.judged_steps) for pair in report.pairs] == [("not judged", 0)]
    assert [one.code for one in report.findings if one.severity != "info"] == ["nothing_judged"]
    assert not report.sound
    alike = compare_trainings(data(training(SINGLE, process(diverged)), training(DP, process(diverged))))
    assert [(pair.verdict, pair.judged_steps) for pair in alike.pairs] == [("not judged", 0)]
    later = [PLAIN[0], *diverged[1:]]
    (pair,) = compare_trainings(data(training(SINGLE, process(later)), training(DP, process(later)))).pairs
    assert (pair.verdict, pair.judged_steps) == ("bit-equal", 1)
    assert headline(report) == "no step can be judged: see the findings"


def test_the_tolerance_of_outputs_ignores_those_that_are_not_finite() -> None:
    """The second module's output moves by 1e-3 with the weights, so that a difference of 2e-3 is tolerated."""
    reference, other = ({"mask": math.nan, "fc": value} for value in (1.0, 1.002))
    found = data(training(SINGLE, process(PLAIN, outputs=reference)), training(DP, process(scaled(2), outputs=other)))
    moved = training(SINGLE, process(scaled(1 + 1e-12), outputs={"mask": math.nan, "fc": 1.001}), kind="rounding")
    report = compare_trainings(replace(found, rounding=moved))
    assert "first forward" not in report.findings[0].message


def samples(*rows: tuple[int, int, int, int]) -> pd.DataFrame:
    """(rank, step, epoch, index) each."""
    return pd.DataFrame(rows, columns=["rank", "step", "epoch", "index"]).assign(entered=1, fingerprint=0)


def test_samples_that_differ_never_enter_or_enter_twice() -> None:
    one = samples((0, 0, 0, 5), (0, 0, 0, 6), (0, 1, 0, 7), (0, 1, 0, 8))
    assert (
        sample_difference(one, samples((0, 0, 0, 6), (1, 0, 0, 5), (0, 1, 0, 8), (1, 1, 0, 7))) is None
    )  # in any order
    other = samples((0, 0, 0, 5), (0, 0, 0, 6), (0, 1, 0, 8), (0, 1, 0, 8))
    assert sample_difference(one, other) == (1, [7], [8])  # step, missing, extra
    table = samples((0, 0, 0, 5), (0, 1, 0, 6), (0, 1, 0, 7), (0, 2, 0, 8))
    assert lost_samples(table) is None
    assert lost_samples(table.assign(entered=[1, 0, 2, 0])) == (1, [6], [7])
