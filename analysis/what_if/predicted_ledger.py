"""Where a predicted step goes: the base's ledger plus what a replay changes of each part."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from dpscope.analysis.traces.ranks.ledger import EXPOSED_PARTS, STEP_PARTS, Ledger
from dpscope.analysis.what_if.replay import StepParts

NO_LEDGER = "the traces of the base do not show where its step goes"
NOT_SPLIT = "the traces of the base do not separate waiting from transfer"
ONE_DEVICE = "one device: nothing to communicate"
_BOUND_BY = dict(zip(STEP_PARTS, ("compute", "waiting", "transfer", "communication", "idle"), strict=True))


def predicted_ledger(
    base: Ledger | None, changes: Sequence[StepParts], step_us: float, devices: int
) -> tuple[Ledger | None, Mapping[str, str]]:
    """The ledger, None if no part is known, and by part without a value the reason.

    `changes` are scenario less base, one per replayed step; parts and tracer add up to `step_us`, as those of the base do. The
    tracer's share is taken to be the base's.
    """
    if base is None:
        return None, dict.fromkeys(STEP_PARTS, NO_LEDGER)
    moved_us = dict(zip(STEP_PARTS, np.mean(changes, axis=0).tolist(), strict=True))
    values_us = {part: getattr(base, f"{part}_us") for part in STEP_PARTS}
    reasons = {part: NO_LEDGER for part, value in values_us.items() if value is None}
    if devices == 1:
        values_us |= dict.fromkeys(EXPOSED_PARTS)
        reasons |= dict.fromkeys(EXPOSED_PARTS, ONE_DEVICE)
    elif not base.is_split:
        moved_us["exposed_other"] = sum(moved_us[part] for part in EXPOSED_PARTS)
        reasons |= dict.fromkeys(("exposed_wait", "exposed_transfer"), NOT_SPLIT)
    parts_us = {part: value + moved_us[part] for part, value in values_us.items() if value is not None}
    return _added_up(base, parts_us, step_us), reasons


def _added_up(base: Ledger, values_us: Mapping[str, float], step_us: float) -> Ledger | None:
    """A ledger of these parts. No part is negative: what the replay takes off a part beyond what was measured of it, it takes off
    the others in proportion; what a part leaves without shortening the step is idle time. None if the tracer's share alone is
    longer than the step."""
    kept = {part: max(0.0, value) for part, value in values_us.items()}
    traced_us, total_us = step_us - (base.tracer_us or 0.0), sum(kept.values())
    if traced_us <= 0 or total_us <= 0:
        return None
    if {"compute", "idle"} <= set(kept):  # else what is left of the step belongs to a part that is not known
        kept["idle"] += max(0.0, traced_us - total_us)
        kept = {part: value * min(1.0, traced_us / total_us) for part, value in kept.items()}
    compute, wait, transfer, other, idle = (kept.get(part) for part in STEP_PARTS)
    ledger = Ledger(traced_us, compute, wait, transfer, other, idle, tracer_us=base.tracer_us)
    kinds = list(base.other_by_kind_us)
    if ledger.exposed_other_us is None or not base.is_split or len(kinds) != 1:
        return ledger
    return replace(ledger, other_by_kind_us={kinds[0]: ledger.exposed_other_us})


def ledger_values(ledger: Ledger | None) -> dict[str, float | None]:
    """The step's parts and the tracer's, which add up to the untraced step; for JSON."""
    names = [f"{part}_us" for part in ("traced_step", *STEP_PARTS, "tracer")]
    return {name: None if ledger is None else getattr(ledger, name) for name in names}


def largest_part(ledger: Ledger | None) -> str | None:
    """The largest of a ledger's known parts, as `bound_by` names it."""
    parts_us = {} if ledger is None else ledger.parts_us
    return _BOUND_BY[max(parts_us, key=lambda part: parts_us[part])] if parts_us else None
