"""The ledger of a predicted step: each part of the base's ledger, plus what the replay of the scenario changes of that part."""

from collections.abc import Mapping, Sequence

import numpy as np

from dpscope.analysis.traces.ranks.ledger import EXPOSED_PARTS, STEP_PARTS, Ledger
from dpscope.analysis.what_if.prediction import Prediction, bound_by, show_ms
from dpscope.analysis.what_if.replay.replay import StepParts

NO_LEDGER = "the traces of the base do not show where its step goes"
NOT_SPLIT = "the traces of the base do not separate waiting from transfer"
ONE_DEVICE = "one device: nothing to communicate"
ONE_PROCESS_COPIES = "DataParallel copies within one process: no collective to wait for"

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

PredictedLedger = tuple[Ledger | None, Mapping[str, str]]
"""The ledger, None if no part is known, and by part without a value the reason."""


def predicted_ledger(
    base: Ledger | None, changes: Sequence[StepParts], step_us: float, devices: int
) -> PredictedLedger:
    """`changes` are scenario less base, one per replayed step; parts and tracer add up to `step_us`, as those of the base do.

    The tracer's share is taken to be the base's.
    """
    if base is None:
        return None, dict.fromkeys(STEP_PARTS, NO_LEDGER)
    mean = StepParts(*(float(value) for value in np.mean(changes, axis=0)))
    values = {part: getattr(base, f"{part}_us") for part in STEP_PARTS}
    reasons = {part: NO_LEDGER for part, value in values.items() if value is None}
    moved = mean._asdict()
    if devices == 1:
        values |= dict.fromkeys(EXPOSED_PARTS)
        reasons |= dict.fromkeys(EXPOSED_PARTS, ONE_DEVICE)
    elif not base.is_split:
        moved["exposed_other"] = mean.exposed_wait + mean.exposed_transfer + mean.exposed_other
        reasons |= dict.fromkeys(("exposed_wait", "exposed_transfer"), NOT_SPLIT)
    changed = {part: value + moved[part] for part, value in values.items() if value is not None}
    return _added_up(base, changed, step_us), reasons


def data_parallel_ledger(
    base: Ledger | None, compute_changes_us: Sequence[float], step_us: float, communication_us: float
) -> PredictedLedger:
    """Of `nn.DataParallel` in DDP's place: all its communication is exposed, and idle is what the other parts leave."""
    if base is None or base.compute_us is None or base.idle_us is None:
        return None, dict.fromkeys(STEP_PARTS, NO_LEDGER)
    compute_us = base.compute_us + float(np.mean(compute_changes_us))
    idle_us = step_us - (base.tracer_us or 0.0) - compute_us - communication_us
    values = {"compute": compute_us, "exposed_other": communication_us, "idle": idle_us}
    return _added_up(base, values, step_us), dict.fromkeys(("exposed_wait", "exposed_transfer"), ONE_PROCESS_COPIES)


def _added_up(base: Ledger, values_us: Mapping[str, float], step_us: float) -> Ledger | None:
    """A ledger of these parts. No part is negative: what the replay takes off a part beyond what was measured of it, it takes off
    the others in proportion; what a part leaves without shortening the step is idle time. None if the tracer's share alone is
    longer than the step."""
    kept = {part: max(0.0, value) for part, value in values_us.items()}
    traced_us, total = step_us - (base.tracer_us or 0.0), sum(kept.values())
    if traced_us <= 0 or total <= 0:
        return None
    if {"compute", "idle"} <= set(kept):  # else what is left of the step belongs to a part that is not known
        kept["idle"] += max(0.0, traced_us - total)
        kept = {part: value * min(1.0, traced_us / total) for part, value in kept.items()}
    compute, wait, transfer, other, idle = (kept.get(part) for part in STEP_PARTS)
    kinds = list(base.other_by_kind_us) if base.is_split and other is not None else []
    by_kind = {kinds[0]: other} if len(kinds) == 1 and other is not None else {}
    return Ledger(traced_us, compute, wait, transfer, other, idle, other_by_kind_us=by_kind, tracer_us=base.tracer_us)


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


def change_sentence(base: Ledger, then: Ledger) -> str:
    """What of the base's step grows and what shrinks, the largest change first; empty if no part changes visibly."""
    before, after = _comparable(base, then), _comparable(then, base)
    moved = {part: after[part] - before[part] for part in before if part in after}
    visible = [part for part in moved if abs(moved[part]) >= _CHANGE_SHOWN * base.traced_step_us]
    return ", ".join(
        f"{PART_LABELS[part]} {'grows' if moved[part] > 0 else 'shrinks'} by {show_ms(abs(moved[part]))} ms"
        for part in sorted(visible, key=lambda part: -abs(moved[part]))
    )


def _comparable(ledger: Ledger, other: Ledger) -> dict[str, float]:
    """Its parts; all exposed communication is one part unless both ledgers split it alike."""
    parts = ledger.parts_us
    alike = all((part in parts) == (part in other.parts_us) for part in EXPOSED_PARTS)
    if alike and ledger.is_split:
        return parts
    return {part: us for part, us in parts.items() if part not in EXPOSED_PARTS} | {"exposed": ledger.exposed_us or 0.0}


def detail_sentences(base: Ledger | None, prediction: Prediction) -> str:
    """The largest part of the predicted step, and what changes against the base."""
    then = prediction.ledger
    if then is None or not then.parts_us:
        return bound_by(prediction)
    part, time_us = max(_comparable(then, then).items(), key=lambda one: one[1])
    changed = change_sentence(base, then) if base is not None else ""
    held_up = f" Held up most by {PART_LABELS[part]} ({show_ms(time_us)} ms)."
    return f"{held_up} Against the base, {changed}." if changed else held_up
