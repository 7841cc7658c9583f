"""Verdicts on two trainings by the tolerance, and on the ranks of one training."""

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from dpscope.analysis.equality.data import RecordedTraining
from dpscope.analysis.equality.differences import (
    LARGEST_TOLERANCE,
    WHATS,
    largest_per_step,
    process_differences,
    training_differences,
)
from dpscope.analysis.equality.result import (
    Agreement,
    PairResult,
    RankAgreement,
    StepDistance,
    TensorDifference,
    TensorDistance,
    What,
)
from dpscope.analysis.text.units import plain

_TENSORS: tuple[What, ...] = ("gradient", "weight")  # in the order of a step


@dataclass(frozen=True)
class JudgedPair:
    """Differences of two trainings with their tolerances; columns of `differences`: COLUMNS, tolerance, over."""

    reference: RecordedTraining
    other: RecordedTraining
    differences: pd.DataFrame
    judged_steps: int  # all steps of a pair that is equal bit for bit

    @property
    def same_bits(self) -> bool:
        """Whether gradients and weights are equal bit for bit."""
        tensors = self.differences[self.differences["what"] != "loss"]
        return bool(tensors["same_bits"].all())

    @property
    def first(self) -> TensorDifference | None:
        """The first difference beyond its tolerance, within a step in the order of WHATS; the largest of its kind."""
        over = self.differences[self.differences["over"]]
        if over.empty:
            return None
        at_step = over[over["step"] == over["step"].min()]
        what = next(what for what in WHATS if (at_step["what"] == what).any())
        of_kind = at_step[at_step["what"] == what]
        return _difference(of_kind.sort_values("relative").iloc[-1])

    @property
    def agree(self) -> bool:
        """Whether they are equal bit for bit, or within the tolerance at every judged step."""
        return self.same_bits or self.first is None


def judge_pair(
    reference: RecordedTraining, other: RecordedTraining, tolerance: pd.DataFrame, judged_steps: int
) -> JudgedPair:
    """Compare two trainings by the tolerances of each step (`differences.tolerances`)."""
    differences = training_differences(reference, other)
    per_row = tolerance.reset_index().melt("step", list(WHATS), "what", "tolerance")
    differences = differences.merge(per_row, on=["step", "what"], how="left", sort=False)
    over = (differences["relative"] > differences["tolerance"]) & (differences["step"] < judged_steps)
    pair = JudgedPair(reference, other, differences.assign(over=over), judged_steps)
    return replace(pair, judged_steps=reference.steps) if pair.same_bits else pair


def pair_result(pair: JudgedPair, explained: bool) -> PairResult:
    """The stored result of a pair; `explained`: its difference is not a mistake."""
    verdict: Agreement = "different"
    if pair.agree:
        verdict = "bit-equal" if pair.same_bits else "equal"
    elif explained:
        verdict = "explained"
    per_step = largest_per_step(pair.differences)
    return PairResult(
        reference=pair.reference.name,
        other=pair.other.name,
        verdict=verdict,
        judged_steps=pair.judged_steps,
        first_difference=pair.first,
        steps=tuple(StepDistance(**row) for row in plain_rows(per_step.reset_index())),
        tensors=_tensors(pair),
    )


def _tensors(pair: JudgedPair) -> tuple[TensorDistance, ...]:
    judged = pair.differences[pair.differences["step"] < pair.judged_steps]
    tables = judged[judged["what"] != "loss"].groupby(["what", "tensor"], sort=False)
    return tuple(_distance(table) for _, table in tables)


def _distance(table: pd.DataFrame) -> TensorDistance:
    over = table.loc[table["over"], "step"]
    return TensorDistance(
        what=table["what"].iloc[0],
        tensor=table["tensor"].iloc[0],
        absolute=known(table["absolute"].max(skipna=False)),
        relative=known(table["relative"].max(skipna=False)),
        first_step_over=int(over.min()) if len(over) else None,
        elements=int(table["elements"].iloc[0]),
        elements_at_last_step=int(table["elements"].iloc[-1]),
    )


def _difference(row: "pd.Series[Any]") -> TensorDifference:
    return TensorDifference(
        step=int(row["step"]),
        what=row["what"],
        tensor=row["tensor"],
        absolute=known(row["absolute"]),
        relative=known(row["relative"]),
        tolerance=known(row["tolerance"]),
        elements=int(row["elements"]),
    )


def rank_result(training: RecordedTraining, reference: RecordedTraining) -> RankAgreement:
    """Compare every rank with rank 0 bit for bit, as DistributedDataParallel promises equal ranks.

    `reference`, a training that should agree otherwise (another strategy with the same shares), shows which ranks are wrong.
    """
    found: list[tuple[int, What]] = []
    for what in _TENSORS:
        hashes = np.stack([rank.arrays[f"{what}_hash"] for rank in training.ranks])
        found += [(step, what) for step in np.flatnonzero((hashes != hashes[0]).any(axis=(0, 2))).tolist()]
    if not found:
        return RankAgreement(training.name, len(training.ranks), True, None, None, None, None, ())
    step, what = min(found, key=lambda one: (one[0], _TENSORS.index(one[1])))
    tensor, relative = _largest(training, step, what)
    apart = _apart(training, reference, step, what)
    return RankAgreement(training.name, len(training.ranks), False, step, what, tensor, known(relative), apart)


def _largest(training: RecordedTraining, step: int, what: What) -> tuple[str, float]:
    """The tensor with the largest difference between a rank and rank 0, and that difference."""
    largest = ("", -1.0)
    for rank in training.ranks[1:]:
        differences = process_differences(training.ranks[0], rank)
        rows = differences[(differences["step"] == step) & (differences["what"] == what)]
        row = rows.sort_values("relative").iloc[-1]
        largest = max(largest, (str(row["tensor"]), float(row["relative"])), key=lambda one: one[1])
    return largest


def _apart(training: RecordedTraining, reference: RecordedTraining, step: int, what: What) -> tuple[int, ...]:
    """Ranks that differ from the reference; if all or none do, the ranks that differ from rank 0."""
    wrong = []
    for rank in training.ranks:
        differences = process_differences(reference.ranks[0], rank)
        rows = differences[(differences["step"] == step) & (differences["what"] == what)]
        if rows["relative"].max() > LARGEST_TOLERANCE:
            wrong.append(rank.record.rank)
    if 0 < len(wrong) < len(training.ranks):
        return tuple(wrong)
    hashes = np.stack([rank.arrays[f"{what}_hash"][step] for rank in training.ranks])
    return tuple(np.flatnonzero((hashes != hashes[0]).any(axis=1)).tolist())


def known(value: float) -> float | None:
    """The value, None if it is not finite."""
    return float(value) if math.isfinite(value) else None


def plain_rows(table: pd.DataFrame) -> list[dict[str, Any]]:
    """A table's rows as plain values by column, None for a value that is not finite."""
    return [{str(name): plain(value) for name, value in row.items()} for row in table.to_dict("records")]
