"""The answer to a what-if: a number with its band, or the reason why there is none."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from dpscope.analysis.text.text_table import Field
from dpscope.analysis.text.units import Unit, show
from dpscope.analysis.traces.ranks.ledger import Ledger
from dpscope.profiling.records.short_repr import short_repr
from dpscope.profiling.store.errors import DpscopeError

BAND = 0.9  # share of the truths that lie inside a band
NINE_OF_TEN = 1.645  # standard deviations to either side that hold 90% of a normal distribution
FARTHEST = 8.0  # times the largest measured device count: beyond it no number is given
UNKNOWABLE = 64  # times the largest measured device count: beyond it no range is given either
_DISTANCES = (1.0, 2.0, 4.0, FARTHEST), (0.0, 0.06, 0.12, 0.25)  # from public series of step times
_MOST_SENTENCES = 4  # more are read more easily in the table
_MOST_COUNTS = 6  # listed in a note
MS = Unit("ms", 1e3, 1)


@dataclass(frozen=True)
class Prediction:
    """One configuration. Microseconds; `low_us` to `high_us` is the 90% band; None is unknown, and `reason` is the reason.

    A range without `step_us` is no band: it is what two assumptions give that the measurements cannot choose between.
    `efficiency` is t_1 / t_N at equal batch per device. `ledger` is where the step goes, `missing` the reason by unknown part,
    and `bound_by` the largest part: compute, waiting, transfer, communication (any other) or idle.
    """

    __repr__ = short_repr

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
    def band(self) -> str | None:
        """The band in milliseconds, such as ``9.5 to 10.5``."""
        return None if self.low_us is None else f"{show_ms(self.low_us)} to {show_ms(self.high_us)}"

    def as_plain(self) -> dict[str, object]:
        """For JSON; without the ledger."""
        return {name: value for name, value in asdict(self).items() if name not in ("ledger", "missing")}


_BAND = "Expected to contain the true value in nine cases out of ten"
_EFFICIENCY = "The step on one device divided by the predicted one, at the same batch per device"


def prediction_fields(of: Callable[[Any], Prediction]) -> list[Field]:
    """The columns of the prediction that a row of a table holds: the first three are what is predicted."""
    return [
        Field("devices", lambda row: of(row).devices, meaning="Devices of the predicted step, with unchanged links"),
        Field("nodes", lambda row: of(row).nodes, meaning="Nodes that this many devices are assumed to span"),
        Field("batch", lambda row: of(row).batch_size, meaning="Batch per device"),
        Field("step", lambda row: of(row).step_us, MS, "Predicted: the measured step plus what the replay adds to it"),
        Field(f"{BAND:.0%} band [ms]", lambda row: of(row).band, meaning=_BAND),
        Field(
            "exposed", lambda row: of(row).exposed_us, MS, "Predicted communication that is not hidden behind compute"
        ),
        Field("efficiency", lambda row: of(row).efficiency, "share", _EFFICIENCY),
    ]


def grounds(predictions: Iterable[Prediction]) -> list[str]:
    """What numbers rest on, or why there is none: each clause once, with the device counts that it holds for."""
    counts: dict[tuple[bool, str], set[int]] = {}
    for one in predictions:
        for clause in str(one.rests_on).split("; ") if one.reason is None else [one.reason]:
            counts.setdefault((one.reason is not None, clause), set()).add(one.devices)
    grouped: dict[tuple[bool, tuple[int, ...]], list[str]] = {}
    for (is_reason, clause), of in counts.items():
        grouped.setdefault((is_reason, tuple(sorted(of))), []).append(clause)
    found = []
    for (is_reason, devices), clauses in sorted(grouped.items(), key=lambda one: (one[0][1][0], -len(one[0][1]))):
        listed = ", ".join(map(str, devices)) if len(devices) <= _MOST_COUNTS else f"{devices[0]} to {devices[-1]}"
        where = f"{listed} device{'' if devices == (1,) else 's'}"
        found.append(f"{where}: {'' if is_reason else 'basis: '}{'; '.join(clauses)}")
    return found


def show_ms(value_us: float | None) -> str:
    """Milliseconds with one digit, without the unit."""
    return show(value_us, MS)


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
        return [f"{label}: {_sentence(one, detail)}" for label, one in pairs]
    (least, quickest), (most, slowest) = known[0], known[-1]
    some = "all" if len(known) == count else str(len(known))
    ends = f"{show_ms(least)} ms a step ({quickest}) to {show_ms(most)} ms ({slowest})"
    ends = ends if least < most else f"{show_ms(most)} ms a step"
    return [f"{count} configurations, {some} with a number: {ends}."]


def _sentence(one: Prediction, detail: Callable[[Prediction], str]) -> str:
    if one.step_us is not None:
        share = "" if one.efficiency is None else f", {100 * one.efficiency:.0f}% of perfect scaling"
        return f"{show_ms(one.step_us)} ms a step ({BAND:.0%} band {one.band}){share}.{detail(one)}"
    if one.low_us is None:
        return f"no number: {one.reason}."
    return f"between {show_ms(one.low_us)} and {show_ms(one.high_us)} ms a step; {one.reason}."


def distance_error(times_largest: float) -> float:
    """Half of the 90% band, in logarithms of the step, that so many times the largest measured device count adds: 0 below 1."""
    times, halves = _DISTANCES
    return float(np.interp(math.log(times_largest), np.log(times), halves))


def beyond_reach(times: float, largest: int, range_from: str) -> str | None:
    """Why a count that is so many times the largest measured one has no number; None where it may have one."""
    if times <= FARTHEST:
        return None
    far = f"{times:,.0f}x the largest measured count ({largest}): no number"
    return f"{far}; the range begins {range_from}" if times <= UNKNOWABLE else f"{far} and no range"


def check_reach(devices: Sequence[int], largest: int) -> None:
    """Raise DpscopeError for device counts of which nothing is known, given the largest measured one."""
    if (most := max(devices)) > UNKNOWABLE * largest:
        raise DpscopeError(
            f"--devices {most}: nothing is known beyond {UNKNOWABLE} times the largest measured count ({largest}); give "
            f"{UNKNOWABLE * largest} or fewer"
        )
