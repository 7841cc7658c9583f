"""What each exposed microsecond of a traced step is: transfer, waiting for a late rank, or other communication.

The three parts are disjoint and add up to `step_breakdown`'s exposed_us. They come from intersecting intervals: the stretches
in which a device communicates and does not compute are cut at every edge of a collective, and each piece is counted once. No
clock is shared between ranks and none is needed: a matched collective waits in its first `wait_us` and transfers in its last
`transfer_us`.
"""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pandas as pd

from dpscope.analysis.traces.ranks.stragglers import late_ranks

PARTS = ("transfer", "wait", "other")
COLUMNS = ("rank", "device", "step", "part", "kind", "late_rank", "time_us")
COPIES = "copy"  # the kind of exposed communication that is no collective: peer copies, dp-host's copies
_AXIS = ["rank", "device", "axis_step"]
_MOST_ROWS = (
    500_000  # of collectives and stretches that are cut at once, which bounds the memory for thousands of ranks
)

_Codes = npt.NDArray[np.int64]
_Times = npt.NDArray[np.float64]


def exposed_parts(table: pd.DataFrame, exposed: pd.DataFrame) -> pd.DataFrame:
    """Rows of COLUMNS from `match_ranks`' table and `exposed_stretches` of all ranks; `time_us` in microseconds.

    `transfer`: at least one matched collective transfers. `wait`: none transfers, at least one waits for a late rank. `other`:
    only communication in flight whose wait and transfer cannot be separated (broadcasts, reduces, send and receive, unmatched
    collectives, copies). Of several collectives in the same part at once, the time counts for the one that entered it first, so
    that the rows of a step add up. `kind` is NA for a collective of unknown kind, `late_rank` NA unless the part is `wait`.
    """
    if exposed.empty:
        return _typed(pd.DataFrame(columns=list(COLUMNS)))
    stretches = _with_axis(exposed)
    late = late_ranks(table) if "match" in table else pd.Series(dtype="Int64")
    collectives = _with_axis(_of_steps(table, exposed)).assign(late_rank=lambda own: own["match"].map(late))
    pieces = [_cut(own, stretch) for own, stretch in _by_ranks(collectives, stretches)]
    keys = list(COLUMNS[:-1])
    summed = pd.concat(pieces, ignore_index=True).groupby(keys, dropna=False, sort=True)["time_us"].sum().reset_index()
    return _typed(summed)


def _typed(frame: pd.DataFrame) -> pd.DataFrame:
    whole, words = ["rank", "device", "step", "late_rank"], ["part", "kind"]
    return frame.astype(dict.fromkeys(whole, "Int64") | dict.fromkeys(words, "string") | {"time_us": "Float64"})


def _of_steps(table: pd.DataFrame, exposed: pd.DataFrame) -> pd.DataFrame:
    """Without collectives that no traced step launched, for ranks whose traces mark steps: they are in no step's sums."""
    marked = exposed.loc[exposed["step"].notna(), "rank"].unique()
    return table[table["step"].notna() | ~table["rank"].isin(marked)]


def _with_axis(table: pd.DataFrame) -> pd.DataFrame:
    """Devices run what any step launched in a window; on the CPU a step's communication is that of its own collectives."""
    return table.assign(axis_step=table["step"].where(table["device"].isna()).fillna(-1))


def _by_ranks(collectives: pd.DataFrame, stretches: pd.DataFrame) -> Iterator[tuple[pd.DataFrame, pd.DataFrame]]:
    """Both tables in shares of whole ranks."""
    ranks_of_stretches = stretches["rank"].unique()
    shares = min(-(-(len(collectives) + len(stretches)) // _MOST_ROWS), len(ranks_of_stretches))
    if shares <= 1:
        yield collectives, stretches
        return
    for ranks in np.array_split(ranks_of_stretches, shares):
        yield collectives[collectives["rank"].isin(ranks)], stretches[stretches["rank"].isin(ranks)]


class _Axis:
    """One time axis on which every (rank, device), on the CPU every (rank, step), has a place of its own."""

    def __init__(self, collectives: pd.DataFrame, stretches: pd.DataFrame) -> None:
        both = pd.concat([collectives[_AXIS], stretches[_AXIS]], ignore_index=True)
        code = np.asarray(both.groupby(_AXIS, dropna=False, sort=False).ngroup(), dtype=np.int64)
        self._code = code[: len(collectives)], code[len(collectives) :]
        starts = np.concatenate([_times(collectives["start_us"]), _times(stretches["start_us"])])
        ends = np.concatenate([_ends(collectives), _times(stretches["end_us"])])
        origin = np.full(int(code.max()) + 1, np.inf)
        np.minimum.at(origin, code, starts)
        span = float((ends - origin[code]).max()) + 1.0
        self._moved = np.arange(len(origin)) * span - origin

    def of_collectives(self, times: _Times) -> _Times:
        return np.asarray(times + self._moved[self._code[0]], dtype=np.float64)

    def of_stretches(self, times: _Times) -> _Times:
        return np.asarray(times + self._moved[self._code[1]], dtype=np.float64)


class _Pieces:
    """Disjoint intervals in order, each with its row: where intervals overlap, the time belongs to the one that began first."""

    def __init__(self, starts: _Times, ends: _Times, rows: _Codes) -> None:
        order = np.argsort(starts, kind="stable")
        starts, ends, rows = starts[order], ends[order], rows[order]
        reach = np.maximum.accumulate(np.concatenate(([-np.inf], ends[:-1]))) if len(ends) else ends
        starts = np.maximum(starts, reach)
        kept = ends > starts
        self.starts, self.ends, self.rows = starts[kept], ends[kept], rows[kept]

    def row_at(self, times: _Times) -> _Codes:
        """The row whose piece holds each time, -1 for none."""
        if not len(self.starts):
            return np.full(len(times), -1, dtype=np.int64)
        place = np.maximum(np.searchsorted(self.starts, times, side="right") - 1, 0)
        inside = (times >= self.starts[place]) & (times < self.ends[place])
        return np.where(inside, self.rows[place], -1)


def _cut(collectives: pd.DataFrame, stretches: pd.DataFrame) -> pd.DataFrame:
    """The stretches cut at every edge of a part: a row per piece, COLUMNS."""
    axis = _Axis(collectives, stretches)
    within = _Pieces(
        axis.of_stretches(_times(stretches["start_us"])),
        axis.of_stretches(_times(stretches["end_us"])),
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
    frame = stretches[["rank", "device", "step"]].iloc[stretch].reset_index(drop=True)
    kinds, late = (collectives[name].reset_index(drop=True) for name in ("kind", "late_rank"))
    known = row >= 0
    return frame.assign(
        part=np.array(PARTS, dtype=object)[part],
        kind=kinds.reindex(row).reset_index(drop=True).where(known, COPIES),
        late_rank=late.reindex(row).reset_index(drop=True).where(part == PARTS.index("wait")),
        time_us=lengths,
    )


def _pieces_of_parts(axis: _Axis, collectives: pd.DataFrame) -> tuple[_Pieces, _Pieces, _Pieces]:
    """Where collectives transfer, where they wait, and where those are in flight that cannot be split."""
    rows = np.arange(len(collectives))
    starts, ends = axis.of_collectives(_times(collectives["start_us"])), axis.of_collectives(_ends(collectives))
    split = collectives["wait_us"].notna().to_numpy(dtype=bool)
    transfers, waits = (_times(collectives[name])[split] for name in ("transfer_us", "wait_us"))
    return (
        _Pieces(ends[split] - transfers, ends[split], rows[split]),
        _Pieces(starts[split], starts[split] + waits, rows[split]),
        _Pieces(starts[~split], ends[~split], rows[~split]),
    )


def _times(column: "pd.Series[float]") -> _Times:
    return np.asarray(column.to_numpy(dtype=float, na_value=np.nan), dtype=np.float64)


def _ends(collectives: pd.DataFrame) -> _Times:
    return _times(collectives["start_us"]) + _times(collectives["duration_us"])
