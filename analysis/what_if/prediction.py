"""The answer to a what-if: a number with its band, or the reason why there is none."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field

import numpy as np

from dpscope.analysis.traces.ranks.ledger import EXPOSED_PARTS, STEP_PARTS, Ledger

BAND = 0.9  # share of the truths that lie inside a band
NINE_OF_TEN = 1.645  # standard deviations to either side that hold 90% of a normal distribution
FARTHEST = 8.0  # times the largest measured device count: beyond it no number is given
_DISTANCES = ((1.0, 0.0), (2.0, 0.06), (4.0, 0.12), (FARTHEST, 0.25))  # from public series of step times
PART_LABELS = {
    "compute": "compute",
    "exposed_wait": "waiting for late ranks",
    "exposed_transfer": "exposed transfer",
    "exposed_other": "other exposed communication",
    "idle": "idle time",
    "exposed": "exposed communication",
}
_BOUND_BY = dict(zip(STEP_PARTS, ("compute", "waiting", "transfer", "communication", "idle"), strict=True))
_CHANGE_SHOWN = 0.02  # of the base's step, from which on a part's change is named
_MOST_SENTENCES = 4  # more are read more easily in the table


@dataclass(frozen=True)
class Prediction:
    """One configuration. Microseconds; `low_us` to `high_us` is the 90% band; None is unknown, and `reason` says why.

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

    def as_plain(self) -> dict[str, object]:
        """For JSON; without the ledger, which `ledger_values` gives."""
        return {name: value for name, value in asdict(self).items() if name not in ("ledger", "missing")}


def ledger_values(ledger: Ledger | None) -> dict[str, float | None]:
    """The step's parts and the tracer's, which add up to the untraced step; for JSON."""
    names = [f"{part}_us" for part in ("traced_step", *STEP_PARTS, "tracer")]
    return {name: None if ledger is None else getattr(ledger, name) for name in names}


def largest_part(ledger: Ledger | None) -> str | None:
    """The largest of a ledger's known parts, as `bound_by` names it."""
    if ledger is None or not ledger.parts_us:
        return None
    parts = ledger.parts_us
    return _BOUND_BY[max(parts, key=lambda part: parts[part])]


def change_sentence(base: Ledger | None, then: Ledger | None) -> str:
    """What of the base's step grows and what shrinks, the largest change first; empty where nothing changes visibly."""
    if base is None or then is None:
        return ""
    before, after = _comparable(base, then), _comparable(then, base)
    moved = {part: after[part] - before[part] for part in before if part in after}
    shown = [part for part in moved if abs(moved[part]) >= _CHANGE_SHOWN * base.traced_step_us]
    shown.sort(key=lambda part: -abs(moved[part]))
    verbs = {part: "grows" if moved[part] > 0 else "shrinks" for part in shown}
    return ", ".join(f"{PART_LABELS[part]} {verbs[part]} by {_ms(abs(moved[part]))} ms" for part in shown)


def _comparable(ledger: Ledger, other: Ledger) -> dict[str, float]:
    """The parts by which it can be compared: all exposed communication as one where not both ledgers split it alike."""
    parts = ledger.parts_us
    alike = all((part in parts) == (part in other.parts_us) for part in EXPOSED_PARTS)
    if alike and ledger.is_split:
        return parts
    return {part: us for part, us in parts.items() if part not in EXPOSED_PARTS} | {"exposed": ledger.exposed_us or 0.0}


def answer_sentences(labels: Sequence[str], predictions: Sequence[Prediction], base: Ledger | None = None) -> list[str]:
    """What is answered, a sentence a configuration; where there are many, which a table shows better, one of their ends.

    With the ledger of the base also what of its step changes.
    """
    told = list(zip(labels, predictions, strict=True))
    reasons = list(
        dict.fromkeys(str(said.reason) for said in predictions if said.step_us is None and said.low_us is None)
    )
    if len(told) > 1 and len(reasons) == 1 and all(said.low_us is None for said in predictions):
        return [f"None of {len(told)} configurations has a number: {reasons[0]}."]
    if len(told) <= _MOST_SENTENCES:
        return [_answered(label, said, base) for label, said in told]
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


def _answered(label: str, said: Prediction, base: Ledger | None) -> str:
    if said.step_us is None:
        if said.low_us is None or said.high_us is None:
            return f"{label}: no number: {said.reason}."
        return f"{label}: between {_ms(said.low_us)} and {_ms(said.high_us)} ms a step; {said.reason}."
    share = "" if said.efficiency is None else f", {100 * said.efficiency:.0f}% of perfect scaling"
    band = f"{BAND:.0%} band {_ms(said.low_us)} to {_ms(said.high_us)}"
    changed = change_sentence(base, said.ledger)
    changes = f" Against the base, {changed}." if changed else ""
    return f"{label}: {_ms(said.step_us)} ms a step ({band}){share}.{_largest(said)}{changes}"


def _largest(said: Prediction) -> str:
    """What holds the step up most: its largest part, with its time if the ledger has it."""
    if said.ledger is not None and said.ledger.parts_us:
        part, time_us = max(_comparable(said.ledger, said.ledger).items(), key=lambda one: one[1])
        return f" Held up most by {PART_LABELS[part]} ({_ms(time_us)} ms)."
    return " Held up most by communication." if said.bound_by == "communication" else ""


def _ms(value_us: float | None) -> str:
    return "NA" if value_us is None else f"{value_us / 1e3:.1f}"


def distance_error(times_largest: float) -> float:
    """Half of the 90% band, in logarithms of the step, that so many times the largest measured device count adds."""
    return float(
        np.interp(math.log(times_largest), [math.log(one) for one, _ in _DISTANCES], [half for _, half in _DISTANCES])
    )
