"""Transfer and waiting from durations alone, against values computed by hand and by traces."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpscope.analysis import analyze_traces
from dpscope.analysis.traces.ranks.readers import find_files
from dpscope.analysis.whole_job.job import read_job
from dpscope.analysis.whole_job.summary import Summary, summarise
from dpscope.analysis.whole_job.tables import kind_rows, rank_rows
from dpscope.analysis.whole_job.waiting import BINS, waiting_of
from tests.helpers.collective_records import (
    START_NS,
    dump,
    entry,
    log_line,
    timed_dump,
    write_dumps,
    write_logs,
)
from tests.helpers.paths import DATA


def summary_of(folder: Path, hosts: Path | None = None) -> Summary:
    return summarise(read_job(find_files(folder), 1 << 30, hosts))


def test_transfer_is_the_shortest_duration_and_the_rest_is_waiting(tmp_path: Path) -> None:
    # collective 1: rank 1 is last, by 2 - 1 = 1 ms; 2: rank 0, by 5 - 3 = 2 ms; 3: rank 2, by 1 ms
    durations = [[4.0, 3.0, 2.0], [1.0, 9.0, 2.0], [2.0, 5.0, 1.0]]
    dumps = [timed_dump(times, range(3)) for times in durations]
    found = waiting_of(read_job(find_files(write_dumps(tmp_path, dumps)), 1 << 30))
    assert found.basis == "durations"
    assert found.transfer_us.tolist() == [5000.0] * 3  # 1 + 3 + 1
    assert found.wait_us.sum(axis=1).tolist() == [4000.0, 7000.0, 3000.0]
    assert found.others.tolist() == [8000.0, 4000.0, 2000.0]
    assert found.lateness_us.tolist() == [2000.0, 1000.0, 1000.0]
    assert found.last_count.tolist() == [1, 1, 1]
    assert (found.counts.records, found.counts.matched) == (9, 9)
    # the times of creation are 10 ms apart: in the first, a middle and the last of the bins
    assert np.flatnonzero(found.wait_us.sum(axis=0)).tolist() == [0, BINS // 2, BINS - 1]
    assert found.bin_edges_s[[0, -1]].tolist() == pytest.approx([0.0, 0.02])


@pytest.mark.parametrize("kind", ["dumps", "json", "logs"])
def test_real_traces_give_the_same_in_each_format(tmp_path: Path, kind: str) -> None:
    """The 8 ranks of the V100 trace, whose collectives are written as records."""
    table = analyze_traces(DATA / "v100x8_ddp_dlrm").collectives
    timed = table[table.wait_us.notna()].sort_values(["rank", "match"])
    assert len(timed) == 64
    dumps, logs = [], []
    for rank, own in timed.groupby("rank"):
        rows: list[Any] = own.to_dict("records")
        entries = [
            entry(
                1 + number,
                duration_ms=row["duration_us"] / 1e3,
                profiling_name=f"nccl:{row['kind']}",
            )
            for number, row in enumerate(rows)
        ]
        dumps.append(dump(entries, range(8)))
        lines = []
        for number, row in enumerate(rows):
            header = {"n_ranks": 8}
            lines.append(
                log_line(
                    int(str(rank)), number, row["duration_us"], coll=row["kind"], header=header
                )
            )
        logs.append(lines)
    write_all = {
        "logs": lambda: write_logs(tmp_path, logs),
        "dumps": lambda: write_dumps(tmp_path, dumps),
        "json": lambda: write_dumps(tmp_path, dumps, as_json=True),
    }
    folder = write_all[kind]()
    summary = summary_of(folder)
    found = summary.waiting
    assert found.counts.matched == 64
    by_rank = timed.groupby("rank")[["transfer_us", "wait_us"]].sum()
    assert found.transfer_us == pytest.approx(by_rank.transfer_us.to_numpy(), abs=1.0)
    assert found.wait_us.sum(axis=1) == pytest.approx(by_rank.wait_us.to_numpy(), abs=1.0)
    assert rank_rows(summary)[0]["rank"] == 7  # as its README and its screen say
    kinds = {row["kind"]: row["collectives"] for row in kind_rows(summary)}
    assert kinds == {"all_reduce": 3, "all_to_all": 5}


def test_collectives_are_matched_by_number_where_records_were_dropped(tmp_path: Path) -> None:
    # rank 0 lacks 3; rank 1's ring begins at 2; so 2, 4 and 5 are on both
    ranks = [
        [log_line(0, number, 100.0) for number in (1, 2, 4, 5)],
        [log_line(1, number, 300.0) for number in (2, 3, 4, 5)],
    ]
    counts = summary_of(write_logs(tmp_path, ranks)).waiting.counts
    assert (counts.matched, counts.outside, counts.dropped) == (6, 1, 1)
    assert counts.records == 8


def test_unlike_kinds_sizes_and_clocks_are_not_compared(tmp_path: Path) -> None:
    first = [entry(1, duration_ms=1.0), entry(2, duration_ms=1.0), entry(3, duration_ms=1.0)]
    other = [
        entry(1, duration_ms=2.0, profiling_name="nccl:all_gather"),
        entry(2, duration_ms=2.0, input_sizes=[[7]], output_sizes=[[7]]),
        entry(3, duration_ms=2.0),
    ]
    found = summary_of(write_dumps(tmp_path / "dumps", [dump(first), dump(other)])).waiting
    assert (found.counts.matched, found.counts.unlike) == (2, 4)
    logs = [[log_line(0, 1, 5.0)], [log_line(1, 1, 9.0, coll_timing_source="kernel_cpu")]]
    found = summary_of(write_logs(tmp_path / "logs", logs)).waiting
    assert (found.counts.matched, found.counts.unlike) == (0, 2)


def test_rooted_collectives_and_transfers_between_two_ranks_have_no_wait(tmp_path: Path) -> None:
    def entries(pair: str) -> list[dict[str, object]]:
        return [
            entry(1, duration_ms=1.0, profiling_name="nccl:broadcast"),
            entry(1, record_id=2, p2p_seq_id=1, is_p2p=True, duration_ms=2.0, profiling_name=pair),
        ]

    dumps = [dump(entries("nccl:send 0->1")), dump(entries("nccl:recv 1<-0"))]
    summary = summary_of(write_dumps(tmp_path, dumps))
    assert summary.waiting.counts.matched == 0
    assert summary.waiting.duration_us.tolist() == [3000.0, 3000.0]
    assert all(row["transfer_us"] is None for row in kind_rows(summary))


def test_coalesced_calls_that_share_a_number_are_matched_in_order(tmp_path: Path) -> None:
    def entries(first_ms: float, second_ms: float) -> list[dict[str, object]]:
        return [
            entry(1, record_id=1, duration_ms=first_ms),
            entry(1, record_id=2, duration_ms=second_ms),
        ]

    found = summary_of(write_dumps(tmp_path, [dump(entries(1, 5)), dump(entries(3, 2))])).waiting
    assert found.counts.matched == 4
    assert found.wait_us.sum(axis=1).tolist() == [3000.0, 2000.0]


def test_numbers_that_start_again_are_another_attempt(tmp_path: Path) -> None:
    times = [log_line(0, number, 100.0) for number in (1, 2, 3)]
    later = [log_line(1, number, 300.0) for number in (1, 2, 3)]
    both = summary_of(write_logs(tmp_path / "both", [times + times, later + later])).waiting
    assert (both.counts.matched, both.counts.restarted) == (12, 0)
    one = summary_of(write_logs(tmp_path / "one", [times + times, later]))
    assert (one.waiting.counts.matched, one.waiting.counts.restarted) == (0, 9)
    assert any("restart" in finding.message for finding in one.findings)


def test_one_percent_of_many_ranks_may_be_missing(tmp_path: Path) -> None:
    size = {"n_ranks": 100}
    lines = [[log_line(rank, 1, 100.0 + rank, header=size)] for rank in range(99)]
    found = summary_of(write_logs(tmp_path / "most", lines)).waiting
    assert found.counts.matched == 99
    fewer = summary_of(write_logs(tmp_path / "fewer", lines[:98]))
    assert fewer.waiting.counts.of_missing_ranks == 98
    texts = " ".join(fact.text for fact in fewer.verdict.facts)
    assert "not separated into waiting and moving data: no record of ranks 98, 99" in texts
    assert "no durations" not in texts


def created(times_ms: list[float]) -> dict[str, object]:
    return dump(
        [
            entry(1 + place, time_created_ns=START_NS + round(ms * 1e6))
            for place, ms in enumerate(times_ms)
        ]
    )


def test_creation_times_show_who_called_last_and_no_waiting(tmp_path: Path) -> None:
    folder = write_dumps(tmp_path / "job", [created([0, 100, 200]), created([20, 121, 199])])
    summary = summary_of(folder)
    assert summary.waiting.basis == "creation"
    first, second = rank_rows(summary)
    assert (first["rank"], first["last"], first["wait_us"], first["caused_us"]) == (
        1,
        2,
        None,
        None,
    )
    assert first["lateness_us"] == pytest.approx(20_500.0)
    assert second["lateness_us"] == pytest.approx(1000.0)
    assert [fact.label for fact in summary.verdict.limits] == ["CLOCKS"]
    text = " ".join(fact.text for fact in summary.verdict.facts)
    assert "rank 1 arrived last on the host in 2 of 3 collectives" in text
    assert "the ranks take turns" in text  # fewer than three quarters, of two ranks
    assert "LATE RANKS" in [fact.label for fact in summary.verdict.facts]
    assert "waiting" not in text

    one = tmp_path / "one"
    one.write_text("rank host\n0 a\n1 a\n")
    assert summary_of(folder, one).verdict.limits == ()
    several = tmp_path / "several"
    several.write_text("0 a\n1 b\n")
    summary = summary_of(folder, several)
    assert summary.waiting.basis == "nothing"
    assert [fact.label for fact in summary.verdict.limits] == ["CLOCKS"]
    assert rank_rows(summary) == []


def test_the_rank_that_was_made_late_is_found_in_the_gloo_job() -> None:
    folder = DATA / "flight_recorder" / "gloo_late_rank"
    first = rank_rows(summary_of(folder))[0]
    assert first["rank"] == 1
    assert first["lateness_us"] == pytest.approx(20_000, rel=0.15)


def test_the_mean_duration_is_of_the_records_that_have_one(tmp_path: Path) -> None:
    times = [[4.0, None], [2.0, None]]
    summary = summary_of(write_dumps(tmp_path, [timed_dump(own) for own in times]))
    (row,) = kind_rows(summary)
    assert (row["records"], row["collectives"], row["duration_us"]) == (4, 1, 3000.0)
