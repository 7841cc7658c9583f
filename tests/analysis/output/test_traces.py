"""What `dpscope analyze` prints below the tables of traces: only where it is so."""

from pathlib import Path
from typing import Any

import pytest

from dpscope.analysis.output.traces import to_tables
from dpscope.analysis.text.text_table import TextTable
from dpscope.analysis.traces.ranks.trace_analysis import analyze_traces
from tests.generated_traces.generator import ddp_trace, write_ddp_job, write_trace
from tests.helpers import made_traces
from tests.helpers.made_traces import Event, launch, on_device, step
from tests.helpers.paths import DATA

COLLECTIVES = "Collectives (mean times; rates: bytes / mean transfer)"
V100 = DATA / "v100x8_ddp_dlrm"


def notes(*paths: Path) -> dict[str, str]:
    return {table.title: "\n".join(table.notes) for table in to_tables(analyze_traces(paths))}


@pytest.mark.long
def test_notes_are_told_only_where_they_are_so(tmp_path: Path) -> None:
    """Bytes that differ over ranks, a rank that is missing, and what a star of a step means."""
    v100, alone = notes(V100), notes(DATA / "a100x2_ddp_resnet50_rank0.json.gz")
    assert "ranks sent different amounts" in v100[COLLECTIVES]
    assert "different amounts" not in notes(write_ddp_job(tmp_path / "job"))[COLLECTIVES]
    for missing in ("need the traces of all ranks of a group", "wait or bandwidth for broadcast"):
        assert missing in alone[COLLECTIVES]
        assert missing not in v100[COLLECTIVES]
    assert "* no whole step was traced" in v100["Steps"]
    assert "left out of averages" not in v100["Steps"]  # averages are of these steps
    assert "left out of averages" in alone["Steps"]
    path = write_trace(ddp_trace(0, 2).trace, tmp_path / "rank0.json")
    steps = to_tables(analyze_traces([path]))[0]
    starred = any(row[2].endswith("*") for row in steps.rows)
    assert starred == any(note.startswith("*") for note in steps.notes)


def collectives(folder: Path, *events: Event) -> TextTable:
    folder.mkdir(exist_ok=True)
    made_traces.write(folder, list(events))
    (table,) = [
        one for one in to_tables(analyze_traces([folder])) if one.title.startswith("Collectives")
    ]
    return table


def test_collectives_say_why_they_lack_numbers(tmp_path: Path) -> None:
    """A send alone, without a size: nothing is said of broadcasts."""
    table = collectives(
        tmp_path, step(1, 0, 100), launch(1, 10), on_device("ncclDevKernel_SendRecv", 20, 70, 1)
    )
    assert "no transfer, wait or bandwidth for send_recv" in table.notes[0]
    assert not any("broadcast" in note for note in table.notes)
    assert any(
        note.startswith("bytes are NA where the trace records no sizes") for note in table.notes
    )


def test_collectives_outside_the_steps_are_one_line(tmp_path: Path) -> None:
    """Three all-reduces of 10 us before the step, one of 70 us in it: the table holds the one, as
    it does without steps.
    """
    own = [launch(9, 1_010), on_device("ncclDevKernel_AllReduce", 1_020, 70, 9)]
    before = [
        event
        for number in range(3)
        for event in (
            launch(number + 1, 100.0 * number),
            on_device("ncclDevKernel_AllReduce", 100.0 * number + 5, 10, number + 1),
        )
    ]
    table = collectives(tmp_path / "steps", step(1, 1_000, 100), *own, *before)
    assert [row[2] for row in table.rows] == ["1"]  # count
    assert (
        table.notes[-1]
        == "3 collectives outside any step (3 all_reduce; 30.0 µs together): not in this table"
    )
    table = collectives(tmp_path / "none", *own)
    assert [row[2] for row in table.rows] == ["1"]
    assert not any("outside any step" in note for note in table.notes)


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
