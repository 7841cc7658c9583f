"""Who made whom wait, and what each exposed microsecond of a step is: transfer, waiting for a late
rank, or other communication.

The three parts are disjoint and add up to `step_table`'s exposed_us. They come from intersecting
intervals: the stretches in which a device communicates and does not compute are cut at every edge
of a collective, and each piece is counted once. No clock is shared between ranks and none is
needed: a matched collective waits in its first `wait_us` and transfers in its last `transfer_us`.
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from dpscope.analysis.traces.ranks.lateness import late_ranks, lost_once
from dpscope.analysis.traces.ranks.whole_steps import STEP_KEYS
from dpscope.analysis.traces.reading.event_table import FloatColumn, IntColumn
from dpscope.analysis.traces.reading.table import UNKNOWN, Table, Words, joined, without_rows
from dpscope.analysis.traces.steps.intervals import Pieces

_KEYS = ("rank", "device", "step")
PARTS = ("transfer", "wait", "other")
EXPOSED = tuple(f"exposed_{part}_us" for part in PARTS)


def waits_by_step(table: Table) -> Table:
    """From `match_tables`' table, per (rank, device, step) with matched collectives: `transfer_us`
    and `wait_us`, microseconds.

    `transfer_us` is the sum of transfer_j. `wait_us` is the length of the union of the waiting
    parts (a collective's first wait_j microseconds): gloo's collectives queue side by side, and a
    wait shared by several of them is lost once.
    """
    matched = table.with_known("wait_us")
    lost_us = lost_once(matched, _KEYS)
    return matched.summed(_KEYS, transfer_us=matched["transfer_us"], wait_us=lost_us)


def _sums_of_parts(parts: Table) -> Table:
    """`exposed_parts` as a row per (rank, device, step) with the columns EXPOSED; a part without
    time is 0.
    """
    times_us = {}
    for part, column in zip(PARTS, EXPOSED, strict=True):
        times_us[column] = np.where(parts.words("part").isin(part), parts["time_us"], 0.0)
    return parts.summed(_KEYS, **times_us)


def with_waits(steps: Table, table: Table, parts: Table) -> Table:
    """`steps` with the columns of `waits_by_step`, NA where nothing was matched, and EXPOSED: a
    step's parts, which add up to its exposed_us, NA where that is unknown.

    If no collective of the job was matched, wait and transfer are NA and all exposed communication
    is `other`: not split.
    """
    whole = _with_columns(steps, waits_by_step(table), ("transfer_us", "wait_us"))
    whole = _with_columns(whole, _sums_of_parts(parts), EXPOSED)
    has_exposed = whole.known("exposed_us")
    parts_us: dict[str, object] = {}
    for name in EXPOSED:  # a part that a step does not have is 0
        parts_us[name] = np.where(has_exposed, np.nan_to_num(whole[name]), np.nan)
    if not table.known("wait_us").any() and (whole["exposed_us"] > 0).any():
        unsplit: dict[str, object] = dict.fromkeys(EXPOSED)
        return whole.assign(**unsplit | {"exposed_other_us": parts_us["exposed_other_us"]})
    return whole.assign(**parts_us)


EXPOSED_WAIT = ("exposed_wait_us", "exposed_share")


def with_exposed_waits(pairs: Table, parts: Table, windows: Table) -> Table:
    """Rows of `waits_by_pair` with what is exposed of their waits, the longest first; `windows` are
    rows of `with_waits`.

    `exposed_wait_us` is a mean over the waiting rank's windows, so that what a rank waits for all
    others is the mean of the column of that name; NA where it is unknown. `exposed_share` is its
    part of the sum over all pairs.
    """
    split_windows = windows.with_known("exposed_wait_us")
    waits = parts.having("part", "wait").within(split_windows, STEP_KEYS)
    waits = waits.assign(waiting_rank=waits["rank"])
    keys = ("late_rank", "waiting_rank")
    exposed = waits.summed(keys, time_us=waits["time_us"])
    # how many windows each waiting rank has
    ranks = split_windows.assign(waiting_rank=split_windows["rank"])
    windows_of = ranks.summed(("waiting_rank",), count=np.ones(len(ranks)))
    rank_places = pairs.places_in(windows_of, ("waiting_rank",))
    count = _at(windows_of["count"], rank_places, np.nan)
    # a pair that never waits exposed is not among those summed
    total_us = _at(exposed["time_us"], pairs.places_in(exposed, keys), 0.0)
    mean_us = total_us / count
    every_us = float(np.nansum(mean_us))
    shares = mean_us / every_us if every_us > 0 else np.full(len(pairs), np.nan)
    order = np.argsort(-np.nan_to_num(mean_us), kind="stable")
    return pairs.assign(exposed_wait_us=mean_us, exposed_share=shares).take(order)


def _with_columns(steps: Table, others: Table, columns: tuple[str, ...]) -> Table:
    """`steps` with the columns of the rows of the same step, NaN where there is none."""
    places = steps.places_in(others, _KEYS)
    return steps.assign(**{name: _at(others[name], places, np.nan) for name in columns})


def _at(values: FloatColumn | IntColumn, places: IntColumn, otherwise: float) -> FloatColumn:
    """The value at each place, `otherwise` at place -1, which no row has."""
    return np.append(values, otherwise)[places]


COLUMNS = ("rank", "device", "step", "part", "kind", "bytes", "late_rank", "time_us")
# the kind of exposed communication that is no collective: peer copies, dp-host's copies
COPIES = "copy"
# traces have whole nanoseconds: a shorter piece comes from the rounding of sums
_ROUNDING_US = 1e-4
# of collectives and stretches that are cut at once: bounds the memory for thousands of ranks
_MOST_ROWS = 500_000


def exposed_parts(table: Table, exposed: Table) -> Table:
    """Rows of COLUMNS from `match_tables`' table and the exposed stretches of all ranks; `time_us`
    in microseconds.

    `transfer`: at least one matched collective transfers. `wait`: none transfers, at least one
    waits for a late rank. `other`: only communication in flight whose wait and transfer cannot be
    separated (broadcasts, reduces, send and receive, unmatched collectives, copies). Of several
    collectives in the same part at once, the time counts for the one that entered it first, so that
    the rows of a step add up. `kind` and `bytes`, of one collective, are NA where unknown,
    `late_rank` unless the part is `wait`.
    """
    if not len(exposed):
        return without_rows(COLUMNS)
    # A collective that no traced step launched is in no step's sums, unless the rank's trace marks
    # no steps.
    marked = np.unique(exposed["rank"][exposed.known("step")])
    collectives = table.take(table.known("step") | ~np.isin(table["rank"], marked))
    collectives = collectives.assign(late_rank=late_ranks(collectives))
    ranks = np.unique(exposed["rank"])
    rows = len(collectives) + len(exposed)
    shares = min(math.ceil(rows / _MOST_ROWS), len(ranks))
    # each share of ranks by itself: the pieces of all at once are several times the collectives
    cut = []
    for share in np.array_split(ranks, shares):
        cut.append(_cut(_of_ranks(collectives, share), _of_ranks(exposed, share)))
    pieces = joined(cut)
    return pieces.summed(COLUMNS[:-1], time_us=pieces["time_us"])


def _of_ranks(table: Table, ranks: FloatColumn) -> Table:
    """The rows of these ranks."""
    return table.take(np.isin(table["rank"], ranks))


def _moves_us(collectives: Table, stretches: Table) -> tuple[FloatColumn, FloatColumn]:
    """How far each row is moved, so that on one time axis every (rank, device), on the CPU every
    (rank, step), is apart.
    """
    places = joined([collectives.select(_KEYS), stretches.select(_KEYS)])
    # A device runs in a window what any step launched; on the CPU, a step communicates through its
    # own collectives alone.
    places = places.assign(step=np.where(places.known("device"), UNKNOWN, places["step"]))
    starts = np.append(collectives["start_us"], stretches["start_us"])
    collective_ends = collectives["start_us"] + collectives["duration_us"]
    ends = np.append(collective_ends, stretches["end_us"])
    moves = places.group(*_KEYS).moved_apart(starts, ends)
    return moves[: len(collectives)], moves[len(collectives) :]


def _cut(collectives: Table, stretches: Table) -> Table:
    """The stretches cut at every edge of a part: a row per piece, COLUMNS."""
    moves_us, stretch_moves_us = _moves_us(collectives, stretches)
    within = Pieces(
        stretches["start_us"] + stretch_moves_us,
        stretches["end_us"] + stretch_moves_us,
        np.arange(len(stretches)),
    )
    by_part = _pieces_by_part(collectives, moves_us)
    # Nothing begins or ends between two edges: what holds in the middle holds from one to the other.
    edges = _edges([within, *by_part.values()])
    middles = (edges[1:] + edges[:-1]) / 2
    lengths_us = np.diff(edges)
    stretch = within.row_at(middles)
    # outside of every stretch the device computes or does not communicate
    inside = (stretch >= 0) & (lengths_us > _ROUNDING_US)
    part, row = _part_at(middles[inside], by_part)
    # row -1, without a collective, is a copy
    kinds = Words.joined([collectives.words("kind"), Words.of([COPIES])])
    late_rank = _at(collectives["late_rank"], row, UNKNOWN)
    is_wait = part == PARTS.index("wait")
    of_stretch = stretches.select(_KEYS).take(stretch[inside])
    return of_stretch.assign(
        part=Words.coded(part, PARTS),
        kind=kinds[np.where(row >= 0, row, len(collectives))],
        bytes=_at(collectives["bytes"], row, UNKNOWN),
        late_rank=np.where(is_wait, late_rank, UNKNOWN),
        time_us=lengths_us[inside],
    )


def _pieces_by_part(collectives: Table, moves_us: FloatColumn) -> dict[str, Pieces]:
    """Where collectives transfer, where they wait, and where those are in flight that cannot be
    split.
    """
    begin_us = collectives["start_us"] + moves_us
    end_us = collectives["start_us"] + collectives["duration_us"] + moves_us
    split = np.flatnonzero(collectives.known("wait_us"))
    whole = np.flatnonzero(~collectives.known("wait_us"))
    transfer_begin_us = end_us[split] - collectives["transfer_us"][split]
    wait_end_us = begin_us[split] + collectives["wait_us"][split]
    return {
        "transfer": Pieces(transfer_begin_us, end_us[split], split),
        "wait": Pieces(begin_us[split], wait_end_us, split),
        "other": Pieces(begin_us[whole], end_us[whole], whole),
    }


def _edges(pieces: Sequence[Pieces]) -> FloatColumn:
    """Every time at which a piece begins or ends, once, in order."""
    times = [piece.starts for piece in pieces] + [piece.ends for piece in pieces]
    return np.unique(np.concatenate(times))


def _part_at(times: FloatColumn, by_part: Mapping[str, Pieces]) -> tuple[IntColumn, IntColumn]:
    """The part at each time, by its place in PARTS, and the row of the collective in it, -1 for
    none.
    """
    part = np.full(len(times), PARTS.index("other"))
    row = np.full(len(times), -1)
    for code, name in reversed(list(enumerate(PARTS))):  # the first part has precedence
        row_of_part = by_part[name].row_at(times)
        there = row_of_part >= 0
        part = np.where(there, code, part)
        row = np.where(there, row_of_part, row)
    return part, row
