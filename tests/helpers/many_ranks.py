"""Partials of generated ranks: a job of any size, with one node whose one rank is late and makes
all others wait.

Every rank has the same collectives in each step. All may begin one STEP_GAP_US after the one before
has ended everywhere; a rank arrives later by `lateness_us`, and its duration is that much shorter:
who waits for whom is known by hand.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dpscope.analysis.traces.ranks.origin import Origin
from dpscope.analysis.traces.ranks.parallelism import ParallelismEvidence, Requests
from dpscope.analysis.traces.ranks.partial import write_partial
from dpscope.analysis.traces.ranks.rank_tables import (
    COLUMNS,
    NO_RANKS,
    RankRecord,
    RankTables,
    TraceSummary,
)
from dpscope.analysis.traces.reading.table import Table

TRANSFER_US = 500.0
STEP_GAP_US = 200.0
SIZES = (26_494_976, 9_461_800, 8_739_072)  # ResNet-18's buckets, in turn
PER_NODE = 8
_Times = npt.NDArray[np.float64]


def host_of(rank: int) -> str:
    return f"n{rank // PER_NODE:04d}"


def lateness_us(ranks: int, collectives: int, bad_rank: int | None, seed: int = 0) -> _Times:
    """(collectives, ranks): how late each comes, up to 50 us by chance.

    Of ten collectives the bad rank comes 1,000 us later in six and its neighbour on the node in
    one; in two it is rank 0.
    """
    late = np.random.default_rng(seed).uniform(0.0, 50.0, (collectives, ranks)).round(3)
    if bad_rank is not None:
        for rank, which in ((bad_rank, range(6)), (bad_rank + 1, range(6, 7)), (0, range(7, 9))):
            late[np.isin(np.arange(collectives) % 10, list(which)), rank] += 1_000.0
    return late


def write_partials(
    folder: Path,
    ranks: int,
    per_partial: int = PER_NODE,
    steps: int = 10,
    per_step: int = 7,
    bad_rank: int | None = None,
    left_out: frozenset[int] = frozenset(),
) -> None:
    """A partial for every `per_partial` ranks; those `left_out` are in none."""
    late = lateness_us(ranks, steps * per_step, bad_rank)
    latest = late.max(axis=1)
    # of each collective
    begun = np.concatenate(([0.0], np.cumsum(latest + TRANSFER_US + STEP_GAP_US)[:-1]))
    for first in range(0, ranks, per_partial):
        own = [
            rank for rank in range(first, min(first + per_partial, ranks)) if rank not in left_out
        ]
        if own:
            partial = _partial(own, ranks, late[:, own], latest, begun, steps, per_step)
            write_partial(partial, folder / f"{host_of(first)}.dpscope")


def _partial(
    own: list[int],
    ranks: int,
    late: _Times,
    latest: _Times,
    begun: _Times,
    steps: int,
    per_step: int,
) -> RankTables:
    count, each = len(own), steps * per_step
    numbers = np.arange(each)
    starts = (begun[:, None] + late).T.ravel()
    durations = (latest[:, None] - late + TRANSFER_US).T.ravel()
    communication = durations.reshape(count * steps, per_step).sum(axis=1)
    ends = np.array(
        [*begun[per_step::per_step], begun[-1] + latest[-1] + TRANSFER_US + STEP_GAP_US]
    )
    lengths = np.tile(np.diff(ends, prepend=0.0), count)
    devices = np.array(own) % PER_NODE
    # Columns that are not here are unknown.
    collectives = {
        "device": np.repeat(devices, each), "step": np.tile(numbers // per_step, count),
        "kind": ["all_reduce"] * count * each, "group": ["0"] * count * each, "sequence": np.tile(numbers, count),
        "order": np.tile(numbers, count), "bytes": np.tile(np.resize(SIZES, each), count),
        "group_size": np.full(count * each, ranks), "start_us": starts, "duration_us": durations, "ready_us": starts - 5.0,
        "concurrent": np.zeros(count * each, dtype=np.int64),
    }  # fmt: skip
    exposed = {name: collectives[name] for name in ("device", "step", "start_us")} | {
        "end_us": starts + durations
    }
    table = {
        "device": np.repeat(devices, steps), "step": np.tile(np.arange(steps), count), "step_us": lengths,
        "compute_us": lengths - communication, "communication_us": communication, "exposed_us": communication,
        **dict.fromkeys(_NOTHING, np.zeros(count * steps)), "partial_window": np.tile(np.arange(steps) == 0, count),
        "collective_count": np.full(count * steps, per_step),
    }  # fmt: skip
    rows_each = {"collectives": each, "exposed": each, "steps": steps}
    tables = {"collectives": collectives, "exposed": exposed, "steps": table}
    rows = {
        name: _table(name, np.repeat(own, rows_each[name]), columns)
        for name, columns in tables.items()
    }
    return RankTables(
        ranks=[_record(rank, ranks) for rank in own],
        tables={name: rows.get(name, NO_RANKS.tables[name]) for name in COLUMNS},
        lengths={name: np.full(count, rows_each.get(name, 0)) for name in COLUMNS},
    )


def _record(rank: int, ranks: int) -> RankRecord:
    reduced = Requests(gradients=7, seen=7)
    summary = TraceSummary(
        source=f"traces/{host_of(rank)}_{rank}.pt.trace.json.gz",
        rank=rank,
        world_size=ranks,
        host=host_of(rank),
        on_device=True,
        range_counts={},
        parallelism=ParallelismEvidence(
            1, ranks, False, False, True, True, frozenset({"all_reduce"}), reduced, Requests()
        ),
    )
    origin = Origin(f"/scratch/{host_of(rank)}_{rank}.pt.trace.json.gz", 5_000_000, 1, "", "1")
    return RankRecord(summary, origin=origin)


_NOTHING = ("hidden_us", "host_copy_us", "device_copy_us", "idle_us", "clipped_us", "by_time_us")


def _table(name: str, ranks: npt.NDArray[np.int64], columns: Mapping[str, Any]) -> Table:
    """A column that is not generated is unknown."""
    return Table.of(**{column: columns.get(column) for column in COLUMNS[name]} | {"rank": ranks})


def equal_ranks(ranks: RankTables, other: RankTables) -> bool:
    """Whether two hold the same ranks and rows, in the same order."""
    tables = all(
        ranks.tables[name].frame.equals(other.tables[name].frame)
        and np.array_equal(ranks.lengths[name], other.lengths[name])
        for name in COLUMNS
    )
    rest = (ranks.ranks, ranks.unread) == (other.ranks, other.unread)
    return tables and rest
