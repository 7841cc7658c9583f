"""The answer to a what-if: a number with its band, or the reason why there is none."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np

BAND = 0.9  # share of the truths that lie inside a band
NINE_OF_TEN = 1.645  # standard deviations to either side that hold 90% of a normal distribution
FARTHEST = 8.0  # times the largest measured device count: beyond it no number is given
_DISTANCES = ((1.0, 0.0), (2.0, 0.06), (4.0, 0.12), (FARTHEST, 0.25))  # from public series of step times
_HELD_UP = {"communication": "communication", "waiting": "waiting for late ranks", "host": "the host's launches"}
_MOST_SENTENCES = 4  # more are read more easily in the table


@dataclass(frozen=True)
class Prediction:
    """One configuration. Microseconds; `low_us` to `high_us` is the 90% band; None is unknown, and `reason` says why.

    A range without `step_us` is no band: it is what two assumptions give that the measurements cannot choose between.
    `efficiency` is t_1 / t_N at equal batch per device; `bound_by` what the step is made of beyond compute.
    """

    devices: int
    nodes: int
    batch_size: int | None
    step_us: float | None = None
    low_us: float | None = None
    high_us: float | None = None
    exposed_us: float | None = None
    efficiency: float | None = None
    bound_by: str | None = None
    rests_on: str | None = None
    reason: str | None = None

    def as_plain(self) -> dict[str, object]:
        """For JSON."""
        return asdict(self)


def answer_sentences(labels: Sequence[str], predictions: Sequence[Prediction]) -> list[str]:
    """What is answered, a sentence a configuration; where there are many, which a table shows better, one of their ends."""
    told = list(zip(labels, predictions, strict=True))
    reasons = list(
        dict.fromkeys(str(said.reason) for said in predictions if said.step_us is None and said.low_us is None)
    )
    if len(told) > 1 and len(reasons) == 1 and all(said.low_us is None for said in predictions):
        return [f"None of {len(told)} configurations has a number: {reasons[0]}."]
    if len(told) <= _MOST_SENTENCES:
        return [_answered(label, said) for label, said in told]
    known = sorted((said.step_us, label) for label, said in told if said.step_us is not None)
    if not known:
        return [f"None of {len(told)} configurations has a number: {'; '.join(reasons) or predictions[0].reason}."]
    (least, quickest), (most, slowest) = known[0], known[-1]
    some = "all" if len(known) == len(told) else str(len(known))
    ends = (
        f"{_ms(least)} ms a step ({quickest}) to {_ms(most)} ms ({slowest})"
        if least < most
        else f"{_ms(most)} ms a step"
    )
    return [f"{len(told)} configurations, {some} with a number: {ends}."]


def _answered(label: str, said: Prediction) -> str:
    if said.step_us is None:
        if said.low_us is None or said.high_us is None:
            return f"{label}: no number: {said.reason}."
        return f"{label}: between {_ms(said.low_us)} and {_ms(said.high_us)} ms a step; {said.reason}."
    share = "" if said.efficiency is None else f", {100 * said.efficiency:.0f}% of perfect scaling"
    bound = "" if said.bound_by in (None, "compute") else f", held up most by {_HELD_UP[said.bound_by]}"
    return f"{label}: {_ms(said.step_us)} ms a step ({BAND:.0%} band {_ms(said.low_us)} to {_ms(said.high_us)}){share}{bound}."


def _ms(value_us: float | None) -> str:
    return "NA" if value_us is None else f"{value_us / 1e3:.1f}"


def distance_error(times_largest: float) -> float:
    """Half of the 90% band, in logarithms of the step, that so many times the largest measured device count adds."""
    return float(
        np.interp(math.log(times_largest), [math.log(one) for one, _ in _DISTANCES], [half for _, half in _DISTANCES])
    )
