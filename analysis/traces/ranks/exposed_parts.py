"""Who made whom wait, and what each exposed microsecond of a step is: transfer, waiting for a late
rank, or other communication.

The three parts are disjoint and add up to `step_table`'s exposed_us. They come from intersecting
intervals: the stretches in which a device communicates and does not compute are cut at every edge
of a collective, and each piece is counted once. No clock is shared between ranks and none is
needed: a matched collective waits in its first `wait_us` and transfers in its last `transfer_us`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dpscope.analysis.text.units import as_ranges
from dpscope.analysis.traces.ranks.lateness import late_ranks, lost_once
from dpscope.analysis.traces.ranks.whole_steps import STEP_KEYS
from dpscope.analysis.traces.reading.event_table import BoolColumn, FloatColumn
from dpscope.analysis.traces.reading.table import UNKNOWN, Table, Words, joined
from dpscope.analysis.traces.steps.event_kind import ROOTED
from dpscope.analysis.traces.steps.intervals import Pieces
from dpscope.profiling.records.finding import Finding
from dpscope.profiling.records.trace_codes import TraceCode

_REASONS = {
    TraceCode.GROUPS_UNKNOWN.code: "its collectives name no process group and do not visibly end together",
    TraceCode.COLLECTIVES_UNMATCHED.code: "the ranks' collectives differ in number, kind or size",
}


def missing_ranks(ranks: Sequence[int | None], world_size: int | None) -> list[int]:
    """Ranks of the job that were not read; none where the job's size or a rank is not known."""
    if world_size is None or any(rank is None for rank in ranks):
        return []
    return sorted(set(range(world_size)) - {rank for rank in ranks if rank is not None})


@dataclass(frozen=True)
class NotSplit:
    """Why communication is not split into transfer and waiting, and what to do."""

    reason: str
    next_step: str


def why_not_split(
    ranks: Sequence[int | None],
    world_size: int | None,
    collectives: Table,
    findings: Sequence[Finding] = (),
) -> NotSplit:
    """The actual reason, for traces of which no step has a transfer; `findings` are those of
    matching the ranks.
    """
    missing = missing_ranks(ranks, world_size)
    if len(ranks) == 1 and world_size != 1:
        return NotSplit(
            "only one process was read",
            "read the traces of all ranks to separate waiting from transfer",
        )
    if missing:
        which, have = f"ranks {as_ranges(missing)}", "have"
        if len(missing) == 1:
            which, have = f"rank {missing[0]}", "has"
        why = "here"
        for finding in findings:
            if finding.code == TraceCode.TRACE_OF_ANOTHER_JOB.code:
                why = f"of this job: {finding.message}"
        reason = f"{which} of {world_size} {have} no trace {why}"
        return NotSplit(reason, f"read the traces of all ranks, {which} among them")
    if not len(collectives):
        return NotSplit(
            "copies between devices are no collectives",
            "look at the copies on the timeline (dpscope merge)",
        )
    if collectives.words("kind").isin(*ROOTED).all():
        return NotSplit(
            "broadcasts and reduces do not make all ranks wait for each other", "no action needed"
        )
    for finding in findings:
        if finding.code in _REASONS:
            return NotSplit(_REASONS[finding.code], finding.next_step)
    return NotSplit(
        "its collectives could not be matched across ranks", "see the findings on the collectives"
    )


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
    matched = table.take(table.known("wait_us"))
    steps = matched.group(*_KEYS, in_order=True)
    return (
        matched.take(steps.first)
        .select(_KEYS)
        .assign(
            transfer_us=steps.sums(matched["transfer_us"]),
            wait_us=steps.sums(lost_once(matched, _KEYS)),
        )
    )


def _sums_of_parts(parts: Table) -> Table:
    """`exposed_parts` as a row per (rank, device, step) with the columns EXPOSED; a part without
    time is 0.
    """
    steps = parts.group(*_KEYS)
    sums = {
        column: steps.sums(np.where(parts.words("part").isin(part), parts["time_us"], 0.0))
        for part, column in zip(PARTS, EXPOSED, strict=True)
    }
    return parts.take(steps.first).select(_KEYS).assign(**sums)


def with_waits(steps: Table, table: Table, parts: Table) -> Table:
    """`steps` with the columns of `waits_by_step`, NA where nothing was matched, and EXPOSED: a
    step's parts, which add up to its exposed_us, NA where that is unknown.

    If no collective of the job was matched, wait and transfer are NA and all exposed communication
    is `other`: not split.
    """
    whole = _with_columns(steps, waits_by_step(table), ("transfer_us", "wait_us"))
    whole = _with_columns(whole, _sums_of_parts(parts), EXPOSED)
    has_exposed = whole.known("exposed_us")
    parts_us = {name: np.where(has_exposed, np.nan_to_num(whole[name]), np.nan) for name in EXPOSED}
    if not table.known("wait_us").any() and (whole["exposed_us"] > 0).any():
        other = EXPOSED[-1]
        return whole.assign(**dict.fromkeys(EXPOSED)).assign(**{other: parts_us[other]})
    return whole.assign(**parts_us)


def with_exposed_waits(pairs: Table, parts: Table, windows: Table) -> Table:
    """Rows of `waits_by_pair` with what is exposed of their waits, the longest first; `windows` are
    rows of `with_waits`.

    `exposed_wait_us` is a mean over the waiting rank's windows, so that what a rank waits for all
    others is the mean of the column of that name; NA where it is unknown. `exposed_share` is its
    part of the sum over all pairs.
    """
    split_windows = windows.take(windows.known("exposed_wait_us"))
    waits = parts.having("part", "wait").within(split_windows, STEP_KEYS)
    sums, ranks = waits.group("late_rank", "rank"), split_windows.group("rank")
    waiting_pairs = Table.of(
        late_rank=waits["late_rank"][sums.first], waiting_rank=waits["rank"][sums.first]
    )
    steps = Table.of(waiting_rank=split_windows["rank"][ranks.first])
    count = np.append(ranks.sizes, np.nan)[pairs.places_in(steps, ("waiting_rank",))]
    total_us = np.append(sums.sums(waits["time_us"]), 0.0)[
        pairs.places_in(waiting_pairs, ("late_rank", "waiting_rank"))
    ]
    mean_us = total_us / count
    every_us = float(np.nansum(mean_us))
    shares = mean_us / every_us if every_us > 0 else np.full(len(pairs), np.nan)
    order = np.argsort(-np.nan_to_num(mean_us), kind="stable")
    return pairs.assign(exposed_wait_us=mean_us, exposed_share=shares).take(order)


def _with_columns(steps: Table, others: Table, columns: tuple[str, ...]) -> Table:
    """`steps` with the columns of the rows of the same step, NaN where there is none."""
    place = steps.places_in(others, _KEYS)
    return steps.assign(**{name: np.append(others[name], np.nan)[place] for name in columns})


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
        return Table.of(**{name: [] for name in COLUMNS})
    # A collective that no traced step launched is in no step's sums, unless the rank's trace marks
    # no steps.
    marked = np.unique(exposed["rank"][exposed.known("step")])
    collectives = table.take(table.known("step") | ~np.isin(table["rank"], marked))
    collectives = collectives.assign(
        late_rank=late_ranks(collectives) if "match" in collectives else None
    )
    ranks = np.unique(exposed["rank"])
    shares = min(-(-(len(collectives) + len(exposed)) // _MOST_ROWS), len(ranks))
    if shares > 1:
        pieces = joined(
            [
                _cut(*(rows.take(np.isin(rows["rank"], own)) for rows in (collectives, exposed)))
                for own in np.array_split(ranks, shares)
            ]
        )
    else:
        pieces = _cut(collectives, exposed)
    keys = pieces.group(*COLUMNS[:-1], in_order=True)
    return pieces.take(keys.first).assign(time_us=keys.sums(pieces["time_us"]))


def _moves_us(collectives: Table, stretches: Table) -> tuple[FloatColumn, FloatColumn]:
    """How far each row is moved, so that on one time axis every (rank, device), on the CPU every
    (rank, step), is apart.
    """
    places = joined([collectives.select(_KEYS), stretches.select(_KEYS)])
    # A device runs in a window what any step launched; on the CPU, a step communicates through its
    # own collectives alone.
    places = places.assign(step=np.where(places.known("device"), UNKNOWN, places["step"]))
    code = places.group(*_KEYS).code
    starts = np.concatenate([collectives["start_us"], stretches["start_us"]])
    ends = np.concatenate(
        [collectives["start_us"] + collectives["duration_us"], stretches["end_us"]]
    )
    origin = np.full(int(code.max()) + 1, np.inf)
    np.minimum.at(origin, code, starts)
    span = float((ends - origin[code]).max()) + 1.0
    moves = (np.arange(len(origin)) * span - origin)[code]
    return moves[: len(collectives)], moves[len(collectives) :]


def _cut(collectives: Table, stretches: Table) -> Table:
    """The stretches cut at every edge of a part: a row per piece, COLUMNS."""
    moves, stretch_moves = _moves_us(collectives, stretches)
    starts, ends = (stretches[name] + stretch_moves for name in ("start_us", "end_us"))
    within = Pieces(starts, ends, np.arange(len(stretches)))
    rows, begin = np.arange(len(collectives)), collectives["start_us"] + moves
    end, split = (
        collectives["start_us"] + collectives["duration_us"] + moves,
        collectives.known("wait_us"),
    )
    # where collectives transfer, where they wait, and where those are in flight that cannot be
    # split
    by_part = {
        "transfer": Pieces(end[split] - collectives["transfer_us"][split], end[split], rows[split]),
        "wait": Pieces(begin[split], begin[split] + collectives["wait_us"][split], rows[split]),
        "other": Pieces(begin[~split], end[~split], rows[~split]),
    }
    pieces = [within, *by_part.values()]
    edges = np.unique(
        np.concatenate([times for piece in pieces for times in (piece.starts, piece.ends)])
    )
    # nothing begins or ends between two edges: what holds in the middle holds from one to the other
    middles, lengths = (edges[1:] + edges[:-1]) / 2, np.diff(edges)
    stretch = within.row_at(middles)
    inside = (stretch >= 0) & (lengths > _ROUNDING_US)
    middles, lengths, stretch = middles[inside], lengths[inside], stretch[inside]
    part, row = np.full(len(middles), PARTS.index("other")), np.full(len(middles), -1)
    for code, name in reversed(list(enumerate(PARTS))):  # the first part has precedence
        row_of_part = by_part[name].row_at(middles)
        part, row = (
            np.where(row_of_part >= 0, code, part),
            np.where(row_of_part >= 0, row_of_part, row),
        )
    kinds = Words.joined([collectives.words("kind"), Words.of([COPIES])])
    late, size = (np.append(collectives[name], UNKNOWN) for name in ("late_rank", "bytes"))
    place = np.where(row >= 0, row, len(collectives))
    of_stretch = stretches.select(_KEYS).take(stretch)
    return of_stretch.assign(
        part=Words.coded(part, PARTS),
        kind=kinds[place],
        bytes=size[place],
        late_rank=np.where(part == PARTS.index("wait"), late[place], UNKNOWN),
        time_us=lengths,
    )


SMALL = 1 << 18  # bytes of a collective, up to which its latency is most of its time on usual links
MANY = 8  # small collectives of a step


def is_small(collectives: Table) -> BoolColumn:
    """Rows of at most SMALL bytes, broadcasts left out."""
    few = collectives.known("bytes") & (collectives["bytes"] <= SMALL)
    return few & ~collectives.words("kind").isin("broadcast")


@dataclass(frozen=True)
class Messages:
    """Exposed communication without waiting, by the size of its collectives: means over windows,
    microseconds per step.

    Broadcasts are in neither. `small_us` is of collectives of at most SMALL bytes, of which a step
    has `small_count`; `small_transfer_us` is the part of it that could be separated from waiting.
    `large_us` is of the reductions above it.
    """

    small_us: float
    small_transfer_us: float
    small_count: float
    large_us: float

    @property
    def many(self) -> bool:
        """Whether a step has so many small collectives that fewer of them can be sent."""
        return self.small_count >= MANY


def messages_of(
    windows: Table, parts: Table, collectives: Table, reducing: Sequence[str]
) -> Messages:
    """From whole windows, `exposed_parts` and the collectives of these windows."""
    sized = parts.within(windows, STEP_KEYS)
    sized = sized.take(
        sized.known("bytes")
        & ~sized.words("part").isin("wait")
        & ~sized.words("kind").isin("broadcast")
    )
    small, count = is_small(sized), max(len(windows), 1)
    transfer, reduces = sized.words("part").isin("transfer"), sized.words("kind").isin(*reducing)
    small_us, small_transfer_us, large_us = (
        float(sized["time_us"][rows].sum()) / count
        for rows in (small, small & transfer, ~small & reduces)
    )
    return Messages(
        small_us, small_transfer_us, float(is_small(collectives).sum()) / count, large_us
    )
