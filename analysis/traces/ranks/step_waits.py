"""Per step of a rank: what its matched collectives transferred and waited, and the three parts of its exposed communication."""

import numpy as np

from dpscope.analysis.traces.ranks.exposed_parts import PARTS, exposed_parts
from dpscope.analysis.traces.ranks.stragglers import lost_once
from dpscope.analysis.traces.reading.table import Table, joined

_KEYS = ("rank", "device", "step")
EXPOSED = tuple(f"exposed_{part}_us" for part in PARTS)


def waits_by_step(table: Table, exposed: Table | None = None) -> Table:
    """From `match_tables`' table, per (rank, device, step): `transfer_us`, `wait_us` and the columns EXPOSED, microseconds.

    `transfer_us` is the sum of transfer_j. `wait_us` is the length of the union of the waiting parts (a collective's first
    wait_j microseconds): gloo's collectives queue side by side, and a wait shared by several of them is lost once. Both are NA
    without matched collectives. EXPOSED are the sums of `exposed_parts`, by `exposed`, the rows of `exposed_stretches` of all
    ranks; NA without them.
    """
    waits = _waits(table)
    if exposed is None:
        return waits.assign(**dict.fromkeys(EXPOSED))
    parts = _sums_of_parts(exposed_parts(table, exposed))
    every = joined([waits.select(_KEYS), parts.select(_KEYS)])
    steps = every.take(every.group(*_KEYS, in_order=True).first)
    return _with_columns(_with_columns(steps, waits, ("transfer_us", "wait_us")), parts, EXPOSED)


def _sums_of_parts(parts: Table) -> Table:
    """`exposed_parts` as a row per (rank, device, step) with the columns EXPOSED; a part without time is 0."""
    steps = parts.group(*_KEYS)
    sums = {
        column: steps.sums(np.where(parts["part"] == part, parts["time_us"], 0.0))
        for part, column in zip(PARTS, EXPOSED, strict=True)
    }
    return parts.take(steps.first).select(_KEYS).assign(**sums)


def with_waits(steps: Table, table: Table, parts: Table) -> Table:
    """`steps` with the columns of `waits_by_step`; a step's parts add up to its exposed_us, and are NA where that is unknown.

    If no collective of the job was matched, wait and transfer are NA and all exposed communication is `other`: not split.
    """
    found = _with_columns(steps, _waits(table), ("transfer_us", "wait_us"))
    found = _with_columns(found, _sums_of_parts(parts), EXPOSED)
    known = found.known("exposed_us")
    split = bool(table.known("wait_us").any()) or not (found["exposed_us"] > 0).any()
    for column in EXPOSED:
        value = np.where(known, np.nan_to_num(found[column]), np.nan)
        found = found.assign(**{column: value if split or column == "exposed_other_us" else None})
    return found


def _with_columns(steps: Table, others: Table, columns: tuple[str, ...]) -> Table:
    """`steps` with the columns of the rows of the same step, NaN where there is none."""
    place = steps.places_in(others, _KEYS)
    return steps.assign(**{name: np.append(others[name], np.nan)[place] for name in columns})


def _waits(table: Table) -> Table:
    known = table.take(table.known("wait_us"))
    steps = known.group(*_KEYS, in_order=True)
    sums = {"transfer_us": steps.sums(known["transfer_us"]), "wait_us": steps.sums(lost_once(known, _KEYS))}
    return known.take(steps.first).select(_KEYS).assign(**sums)
