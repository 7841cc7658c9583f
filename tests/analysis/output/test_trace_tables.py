"""What `dpscope analyze` prints below the tables of traces: only where it is so."""

from pathlib import Path
from typing import Any

from dpscope.analysis.output.trace_tables import to_tables
from dpscope.analysis.traces.ranks.trace_analysis import analyze_traces
from tests.helpers import made_traces

COLLECTIVES = "Collectives (mean times; rates: bytes / mean transfer)"


def notes(*paths: Path) -> dict[str, str]:
    return {table.title: "\n".join(table.notes) for table in to_tables(analyze_traces(paths))}


def test_a_rows_rate_follows_from_its_own_bytes_and_time(tmp_path: Path) -> None:
    """Two all-reduces of 1 MB on two ranks take 100 and 300 us: 5 GB/s, as nccl-tests says, not the
    mean of 10 and 3.33.
    """
    sizes: dict[str, Any] = {
        "Collective name": "allreduce",
        "In msg nelems": 250_000,
        "Out msg nelems": 250_000,
        "dtype": "Float",
    }
    group: dict[str, Any] = {
        "Group size": 2,
        "Process Group Name": "0",
        "Process Group Ranks": "[0, 1]",
    }
    for rank in range(2):
        events = made_traces.steps_with([(100, 200), (100, 200), (100, 400)], **sizes, **group)
        made_traces.write(tmp_path, events, rank)
    (table,) = [one for one in to_tables(analyze_traces([tmp_path])) if one.title == COLLECTIVES]
    assert table.headings == (
        "kind", "bytes", "count", "duration [µs]", "transfer [µs]", "wait [µs]", "algbw [GB/s]", "busbw [GB/s]",
    )  # fmt: skip
    # the first step's window has no start: its all-reduce is no part of a mean
    assert table.rows == (
        ("all_reduce", "1,000,000", "4", "200.0", "200.0", "0.0", "5.000", "5.000"),
    )
