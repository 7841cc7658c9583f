"""The tables of ranks, as a reader of a further format gives them."""

from pathlib import Path

import pytest

from dpscope.analysis.traces.ranks.partial import read_partial, write_partial
from dpscope.analysis.traces.ranks.rank_tables import (
    RankRecord,
    RankTables,
    TraceSummary,
    join_ranks,
    of_rank,
)
from dpscope.analysis.traces.ranks.trace_analysis import analyze_job
from dpscope.analysis.traces.reading.table import Table
from tests.helpers.known import known


def sparse_rank(rank: int, took_us: float) -> RankTables:
    """One step of a format that knows neither groups nor copies nor phases."""
    place = {"rank": [rank], "device": [rank], "step": [1]}
    steps = {
        "step_us": [2000.0],
        "compute_us": [1500.0],
        "communication_us": [took_us],
        "hidden_us": [0.0],
        "exposed_us": [took_us],
        "idle_us": [500.0 - took_us],
        "partial_window": [False],
    }
    calls = {
        "kind": ["all_reduce"],
        "bytes": [1 << 20],
        "group_size": [2],
        "start_us": [1500.0],
        "duration_us": [took_us],
    }
    return of_rank(
        RankRecord(TraceSummary(f"rank{rank}", rank, world_size=2, on_device=True)),
        steps=Table.of(**place, **steps),
        collectives=Table.of(**place, **calls),
        exposed=Table.of(**place, start_us=[1500.0], end_us=[1500.0 + took_us]),
    )


def test_what_a_format_does_not_know_is_left_out(tmp_path: Path) -> None:
    ranks = join_ranks([sparse_rank(0, 400.0), sparse_rank(1, 100.0)])
    write_partial(ranks, tmp_path / "job.dpscope")
    for read in (ranks, read_partial(tmp_path / "job.dpscope")):
        ledger = known(analyze_job(read, ()).ledger)
        # rank 0 waits 400 - 100 us for rank 1, the mean of both ranks is half of it
        assert (ledger.exposed_wait_us, ledger.exposed_transfer_us) == (150.0, 100.0)
        assert (ledger.unlaunched_us, ledger.host_copy_us) == (None, None)


def test_a_table_that_does_not_exist_is_refused() -> None:
    with pytest.raises(AssertionError):
        of_rank(RankRecord(TraceSummary("a")), collective=Table({}))
