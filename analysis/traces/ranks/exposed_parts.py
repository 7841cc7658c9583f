"""What each exposed microsecond of a traced step is: transfer, waiting for a late rank, or other communication.

The three parts are disjoint and add up to `step_breakdown`'s exposed_us. They come from intersecting intervals: the stretches
in which a device communicates and does not compute are cut at every edge of a collective, and each piece is counted once. No
clock is shared between ranks and none is needed: a matched collective waits in its first `wait_us` and transfers in its last
`transfer_us`.
"""

from collections.abc import Iterator

import numpy as np

from dpscope.analysis.traces.ranks.stragglers import late_ranks
from dpscope.analysis.traces.reading.event_table import FloatColumn, IntColumn
from dpscope.analysis.traces.reading.table import UNKNOWN, Table, joined

PARTS = ("transfer", "wait", "other")
COLUMNS = ("rank", "device", "step", "part", "kind", "late_rank", "time_us")
COPIES = "copy"  # the kind of exposed communication that is no collective: peer copies, dp-host's copies
_MOST_ROWS = (
    500_000  # of collectives and stretches that are cut at once, which bounds the memory for thousands of ranks
)


def exposed_parts(table: Table, exposed: Table) -> Table:
    """Rows of COLUMNS from `match_tables`' table and `exposed_stretches` of all ranks; `time_us` in microseconds.

    `transfer`: at least one matched collective transfers. `wait`: none transfers, at least one waits for a late rank. `other`:
    only communication in flight whose wait and transfer cannot be separated (broadcasts, reduces, send and receive, unmatched
    collectives, copies). Of several collectives in the same part at once, the time counts for the one that entered it first, so
    that the rows of a step add up. `kind` is NA for a collective of unknown kind, `late_rank` NA unless the part is `wait`.
    """
    if not len(exposed):
        return Table.of(**{name: [] for name in COLUMNS})
    collectives = _of_steps(table, exposed)
    collectives = collectives.assign(late_rank=late_ranks(collectives) if "match" in collectives else None)
    pieces = joined([_cut(own, stretches) for own, stretches in _by_ranks(collectives, exposed)])
    keys = pieces.group(*COLUMNS[:-1], in_order=True)
    return pieces.take(keys.first).assign(time_us=keys.sums(pieces["time_us"]))


def _of_steps(table: Table, exposed: Table) -> Table:
    """Without collectives that no traced step launched, for ranks whose traces mark steps: they are in no step's sums."""
    marked = np.unique(exposed["rank"][exposed.known("step")])
    return table.take(table.known("step") | ~np.isin(table["rank"], marked))


def _by_ranks(collectives: Table, stretches: Table) -> Iterator[tuple[Table, Table]]:
    """Both tables in shares of whole ranks."""
    ranks = np.unique(stretches["rank"])
    shares = min(-(-(len(collectives) + len(stretches)) // _MOST_ROWS), len(ranks))
    if shares <= 1:
        yield collectives, stretches
        return
    for own in np.array_split(ranks, shares):
        yield tuple(table.take(np.isin(table["rank"], own)) for table in (collectives, stretches))  # type: ignore[misc]


def _places(table: Table) -> Table:
    """Devices run what any step launched in a window; on the CPU a step's communication is that of its own collectives."""
    own = table.select(("rank", "device", "step"))
    return own.assign(step=np.where(own.known("device"), UNKNOWN, own["step"]))


class _Axis:
    """One time axis on which every (rank, device), on the CPU every (rank, step), has a place of its own."""

    def __init__(self, collectives: Table, stretches: Table) -> None:
        both = joined([_places(collectives), _places(stretches)])
        code = both.group("rank", "device", "step").code
        self._code = code[: len(collectives)], code[len(collectives) :]
        starts = np.concatenate([collectives["start_us"], stretches["start_us"]])
        ends = np.concatenate([_ends(collectives), stretches["end_us"]])
        origin = np.full(int(code.max()) + 1, np.inf)
        np.minimum.at(origin, code, starts)
        span = float((ends - origin[code]).max()) + 1.0
        self._moved = np.arange(len(origin)) * span - origin

    def of_collectives(self, times: FloatColumn) -> FloatColumn:
        return np.asarray(times + self._moved[self._code[0]], dtype=np.float64)

    def of_stretches(self, times: FloatColumn) -> FloatColumn:
        return np.asarray(times + self._moved[self._code[1]], dtype=np.float64)


class _Pieces:
    """Disjoint intervals in order, each with its row: where intervals overlap, the time belongs to the one that began first."""

    def __init__(self, starts: FloatColumn, ends: FloatColumn, rows: IntColumn) -> None:
        order = np.argsort(starts, kind="stable")
        starts, ends, rows = starts[order], ends[order], rows[order]
        reach = np.maximum.accumulate(np.concatenate(([-np.inf], ends[:-1]))) if len(ends) else ends
        starts = np.maximum(starts, reach)
        kept = ends > starts
        self.starts, self.ends, self.rows = starts[kept], ends[kept], rows[kept]

    def row_at(self, times: FloatColumn) -> IntColumn:
        """The row whose piece holds each time, -1 for none."""
        if not len(self.starts):
            return np.full(len(times), -1, dtype=np.int64)
        place = np.maximum(np.searchsorted(self.starts, times, side="right") - 1, 0)
        inside = (times >= self.starts[place]) & (times < self.ends[place])
        return np.where(inside, self.rows[place], -1)


def _cut(collectives: Table, stretches: Table) -> Table:
    """The stretches cut at every edge of a part: a row per piece, COLUMNS."""
    axis = _Axis(collectives, stretches)
    within = _Pieces(
        axis.of_stretches(stretches["start_us"]),
        axis.of_stretches(stretches["end_us"]),
        np.arange(len(stretches)),
    )
    by_part = dict(zip(PARTS, _pieces_of_parts(axis, collectives), strict=True))
    pieces = [within, *by_part.values()]
    edges = np.unique(np.concatenate([times for one in pieces for times in (one.starts, one.ends)]))
    middles, lengths = (edges[1:] + edges[:-1]) / 2, np.diff(edges)
    stretch = within.row_at(middles)
    inside = stretch >= 0
    middles, lengths, stretch = middles[inside], lengths[inside], stretch[inside]
    part, row = np.full(len(middles), PARTS.index("other")), np.full(len(middles), -1)
    for code, name in reversed(list(enumerate(PARTS))):  # the first part has precedence
        found = by_part[name].row_at(middles)
        part, row = np.where(found >= 0, code, part), np.where(found >= 0, found, row)
    known, of_wait = row >= 0, part == PARTS.index("wait")
    kinds, late = np.append(collectives["kind"], COPIES), np.append(collectives["late_rank"], UNKNOWN)
    place = np.where(known, row, len(collectives))
    return (
        stretches.take(stretch)
        .select(("rank", "device", "step"))
        .assign(
            part=np.array(PARTS, dtype=object)[part],
            kind=kinds[place],
            late_rank=np.where(of_wait, late[place], UNKNOWN),
            time_us=lengths,
        )
    )


def _pieces_of_parts(axis: _Axis, collectives: Table) -> tuple[_Pieces, _Pieces, _Pieces]:
    """Where collectives transfer, where they wait, and where those are in flight that cannot be split."""
    rows = np.arange(len(collectives))
    starts, ends = axis.of_collectives(collectives["start_us"]), axis.of_collectives(_ends(collectives))
    split = collectives.known("wait_us")
    transfers, waits = (collectives[name][split] for name in ("transfer_us", "wait_us"))
    return (
        _Pieces(ends[split] - transfers, ends[split], rows[split]),
        _Pieces(starts[split], starts[split] + waits, rows[split]),
        _Pieces(starts[~split], ends[~split], rows[~split]),
    )


def _ends(collectives: Table) -> FloatColumn:
    return np.asarray(collectives["start_us"] + collectives["duration_us"])
