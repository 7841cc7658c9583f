"""The answer to a what-if: a number with its band, or the reason why there is none."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field

import numpy as np

from dpscope.analysis.traces.ranks.ledger import Ledger

BAND = 0.9  # share of the truths that lie inside a band
NINE_OF_TEN = 1.645  # standard deviations to either side that hold 90% of a normal distribution
FARTHEST = 8.0  # times the largest measured device count: beyond it no number is given
_DISTANCES = (1.0, 2.0, 4.0, FARTHEST), (0.0, 0.06, 0.12, 0.25)  # from public series of step times
_MOST_SENTENCES = 4  # more are read more easily in the table


@dataclass(frozen=True)
class Prediction:
    """One configuration. Microseconds; `low_us` to `high_us` is the 90% band; None is unknown, and `reason` is the reason.

    A range without `step_us` is no band: it is what two assumptions give that the measurements cannot choose between.
    `efficiency` is t_1 / t_N at equal batch per device. `ledger` is where the step goes, `missing` the reason by unknown part,
    and `bound_by` the largest part: compute, waiting, transfer, communication (any other) or idle.
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
    ledger: Ledger | None = None
    missing: Mapping[str, str] = field(default_factory=dict)

    @property
    def band(self) -> str:
        """The band in milliseconds, such as ``9.5 to 10.5``."""
        return "NA" if self.low_us is None else f"{show_ms(self.low_us)} to {show_ms(self.high_us)}"

    @property
    def percent(self) -> str:
        """The efficiency."""
        return "NA" if self.efficiency is None else f"{100 * self.efficiency:.1f}"

    def as_plain(self) -> dict[str, object]:
        """For JSON; without the ledger."""
        return {name: value for name, value in asdict(self).items() if name not in ("ledger", "missing")}


def show_ms(value_us: float | None) -> str:
    """Milliseconds with one digit, without the unit."""
    return "NA" if value_us is None else f"{value_us / 1e3:.1f}"


def bound_by(prediction: Prediction) -> str:
    """A sentence that names communication as the largest part of a step."""
    return " Held up most by communication." if prediction.bound_by == "communication" else ""


def answer_sentences(
    labels: Sequence[str], predictions: Sequence[Prediction], detail: Callable[[Prediction], str] = bound_by
) -> list[str]:
    """The answer, a sentence for each configuration with its `detail`; of many only the ends, as a table shows them better."""
    count = len(predictions)
    pairs = list(zip(labels, predictions, strict=True))
    known = sorted((one.step_us, label) for label, one in pairs if one.step_us is not None)
    reasons = dict.fromkeys(str(one.reason) for one in predictions if one.step_us is None and one.low_us is None)
    alike = len(reasons) == 1 < count and all(one.low_us is None for one in predictions)
    if alike or (count > _MOST_SENTENCES and not known):
        return [f"None of {count} configurations has a number: {'; '.join(reasons) or predictions[0].reason}."]
    if count <= _MOST_SENTENCES:
        return [_sentence(label, one, detail) for label, one in pairs]
    (least, quickest), (most, slowest) = known[0], known[-1]
    some = "all" if len(known) == count else str(len(known))
    ends = f"{show_ms(least)} ms a step ({quickest}) to {show_ms(most)} ms ({slowest})"
    ends = ends if least < most else f"{show_ms(most)} ms a step"
    return [f"{count} configurations, {some} with a number: {ends}."]


def _sentence(label: str, one: Prediction, detail: Callable[[Prediction], str]) -> str:
    if one.step_us is None:
        if one.low_us is None or one.high_us is None:
            return f"{label}: no number: {one.reason}."
        return f"{label}: between {show_ms(one.low_us)} and {show_ms(one.high_us)} ms a step; {one.reason}."
    share = "" if one.efficiency is None else f", {100 * one.efficiency:.0f}% of perfect scaling"
    return f"{label}: {show_ms(one.step_us)} ms a step ({BAND:.0%} band {one.band}){share}.{detail(one)}"


def distance_error(times_largest: float) -> float:
    """Half of the 90% band, in logarithms of the step, that so many times the largest measured device count adds."""
    times, halves = _DISTANCES
    return float(np.interp(math.log(times_largest), np.log(times), halves))
