"""Two trainings judged by the tolerance: where they first are apart, and how far."""

import math
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd

from dpscope.analysis.equality.data import RecordedTraining
from dpscope.analysis.equality.differences import training_differences
from dpscope.analysis.equality.result import Agreement, PairResult, StepDistance, TensorDifference, TensorDistance
from dpscope.analysis.equality.tolerance import WHATS, largest_per_step
from dpscope.analysis.text.units import plain


@dataclass(frozen=True)
class JudgedPair:
    """Differences of two trainings beside their tolerances; columns of `differences`: COLUMNS, tolerance, over."""

    reference: RecordedTraining
    other: RecordedTraining
    differences: pd.DataFrame
    judged_steps: int  # all, if they are equal bit for bit: no tolerance is needed then

    @property
    def same_bits(self) -> bool:
        """Whether gradients and weights are equal bit for bit."""
        tensors = self.differences[self.differences["what"] != "loss"]
        return bool(tensors["same_bits"].all())

    @property
    def first(self) -> TensorDifference | None:
        """The first difference beyond its tolerance: the loss's before gradients' before weights', the largest of its kind."""
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
    """Compare two trainings by the tolerances of each step (`equality_tolerance.tolerances`)."""
    differences = training_differences(reference, other)
    per_row = tolerance.reset_index().melt("step", list(WHATS), "what", "tolerance")
    differences = differences.merge(per_row, on=["step", "what"], how="left", sort=False)
    over = (differences["relative"] > differences["tolerance"]) & (differences["step"] < judged_steps)
    pair = JudgedPair(reference, other, differences.assign(over=over), judged_steps)
    return replace(pair, judged_steps=reference.steps) if pair.same_bits else pair


def pair_result(pair: JudgedPair, explained: bool) -> PairResult:
    """What is stored of a pair; `explained`: a difference of it is no mistake."""
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
    """Of the rows of one tensor."""
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


def known(value: float) -> float | None:
    """None for what is not finite."""
    return float(value) if math.isfinite(value) else None


def plain_rows(table: pd.DataFrame) -> list[dict[str, Any]]:
    """A table's rows as plain values by column, None for what is not finite."""
    return [{str(name): plain(value) for name, value in row.items()} for row in table.to_dict("records")]
