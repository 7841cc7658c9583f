"""What analyze shows of records of collectives, in each format."""

import csv
import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from dpscope.analysis.output.run_screen import Targets
from dpscope.analysis.output.whole_job import print_records
from dpscope.analysis.traces.ranks.readers import find_files
from dpscope.analysis.traces.reading.chunks import DEFAULT_LIMITS
from dpscope.profiling.records.links import LinkRate
from tests.helpers.collective_records import log_line, write_logs
from tests.helpers.paths import DATA


def printed(
    folder: Path, output_format: str, verbose: bool = False, **targets: object
) -> tuple[int, str]:
    console = Console(file=io.StringIO(), width=80)
    status = print_records(
        find_files(folder),
        None,
        output_format,
        DEFAULT_LIMITS,
        console,
        Targets(**targets),  # type: ignore[arg-type]
        verbose,
    )
    assert isinstance(console.file, io.StringIO)
    return status, console.file.getvalue()


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    """100 all-reduces a second apart, of which rank 1 of 2 delays each by 30 ms; 10 ms transfer."""
    ranks = [
        [log_line(rank, number, 40_000.0 - 30_000.0 * rank) for number in range(100)]
        for rank in (0, 1)
    ]
    return write_logs(tmp_path / "logs", ranks)


def test_the_first_screen_answers_in_facts(logs: Path) -> None:
    status, text = printed(logs, "table")
    lines = [line.rstrip() for line in text.splitlines()]
    assert status == 0
    assert len(lines) <= 24
    joined = " ".join(text.split())
    assert "NCCL Inspector of 2 ranks on 2 hosts: 200 records" in joined
    assert "how much of it is exposed is unknown" in joined
    # a rank's collectives: (40 + 10) / 2 ms x 100; waiting 30 / 2 x 100; transfer 10 x 100
    assert (
        "collectives take 2.5 s per rank (2% of the time)" in joined or "(3% of the time)" in joined
    )
    assert "1.5 s waiting for late ranks, 1.0 s moving data" in joined
    assert "not separated" not in joined
    assert "LATE RANK rank 1 (node1) causes 100% of the waiting" in joined
    assert (
        "last in 100 of 100 collectives, typically by 30.0 ms (median of its 100 larger delays)"
        in joined
    )
    assert "without its lateness the job is at most 3.0 s shorter" in joined


def test_json_and_csv_hold_all_numbers(logs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    printed(logs, "json", link=LinkRate(1.0, "link", "stated"))
    content = json.loads(capsys.readouterr().out)
    assert content["span_s"] == pytest.approx(99, abs=0.1)  # from the first to the hundredth
    (kind,) = content["by_kind"]
    assert (kind["kind"], kind["collectives"], kind["hosts"]) == ("all_reduce", 100, 2)
    assert (kind["transfer_us"], kind["wait_us"]) == (10_000.0, 15_000.0)
    # 1 MiB in 10 ms; the factor of 2 ranks is 1; the ring at 1 GB/s takes 1,048.576 us
    assert kind["busbw_gb_per_s"] == pytest.approx(0.1048576)
    assert kind["ring_share"] == pytest.approx(0.1048576)
    assert [row["host"] for row in content["by_host"]] == ["node1", "node0"]
    assert content["by_host"][0]["caused_share"] == 1.0
    assert len(content["by_time"]) == 20
    assert sum(row["wait_us"] for row in content["by_time"]) == pytest.approx(1_500_000)
    printed(logs, "csv")
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert len(rows) == 40
    assert sum(float(row["caused_us"]) for row in rows if row["rank"] == "1") == pytest.approx(3e6)


def test_the_page_has_facts_tables_and_the_figure(logs: Path, tmp_path: Path) -> None:
    printed(logs, "table", report=tmp_path / "report", figure_formats=("png",))
    page = (tmp_path / "report" / "report.html").read_text()
    assert "LATE RANK" in page
    assert "Ranks over the whole time" in page
    assert 'id="figure-waiting_over_time"' in page
    assert (tmp_path / "report" / "figures" / "waiting_over_time.png").stat().st_size > 1000
    assert "LATE RANK" in (tmp_path / "report" / "report.md").read_text()


def test_a_log_that_ends_within_a_line_is_named(logs: Path) -> None:
    log = logs / "node1-pid101.log"
    whole = log.read_bytes()
    log.write_bytes(whole[: len(whole) // 2])
    status, text = printed(logs, "table")
    assert status == 2
    assert "CUT the records of rank 1 are cut short or damaged" in " ".join(text.split())


def test_hosts_can_be_hidden(logs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (logs / "node0-pid100.log").write_text((logs / "node0-pid100.log").read_text() + "{")
    printed(logs, "json", hide_hosts=True)
    text = capsys.readouterr().out
    assert "node" not in text
    assert "host0" in text


def test_a_stopped_job_is_an_error_and_names_its_ranks() -> None:
    status, text = printed(DATA / "flight_recorder" / "lock_gil", "table")
    joined = " ".join(text.split())
    assert status == 1
    assert "ranks 9, 14 never began calls pending on ranks 1, 6, 8, 10 to 13, 15" in joined
    assert "all_to_all 45265 of EXPERT_MODEL_PARALLEL_GROUP (ranks 8 to 15, 21.7 MB)" in joined
    assert "COST" not in text
    assert "LATE RANK" not in text


@pytest.mark.parametrize(
    ("name", "oldest", "ranks"),
    [
        # the ranks that never began the oldest wait in nothing
        ("lock_gil", "all_to_all 45265", set(range(16)) - {9, 14}),
        ("gpu_error", "recv 3->2 13694", set(range(16))),
    ],
)
def test_a_stopped_job_shows_what_each_rank_waits_in(
    name: str, oldest: str, ranks: set[int], capsys: pytest.CaptureFixture[str]
) -> None:
    """Each rank once, and no two rows alike, of zeros or without a meaning."""
    printed(DATA / "flight_recorder" / name, "json")
    content = json.loads(capsys.readouterr().out)
    rows = content["by_unfinished"]
    assert oldest in {row["oldest"] for row in rows}
    assert sorted(rank for row in rows for rank in row["ranks"]) == sorted(ranks)
    assert sum(sum(row["unfinished"]) for row in rows) == content["unfinished"]["calls"]
    kinds = [tuple(row.values()) for row in content["by_kind"]]
    assert len(kinds) == len(set(kinds))
    assert sum(row["records"] for row in content["by_kind"]) == content["unfinished"]["calls"]
    counts = content["records"]
    assert (
        counts["read"]
        == content["unfinished"]["calls"]
        == counts["records"] + counts["point_to_point"]
    )
    assert content["by_rank"] == []
    assert [one["code"] for one in content["findings"]] == ["collective_not_begun"]


def test_the_csv_and_the_page_of_a_stopped_job_hold_what_each_rank_waits_in(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = DATA / "flight_recorder" / "lock_gil"
    printed(folder, "csv", report=tmp_path / "report")
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    by_rank = {rank: row for row in rows for rank in row["ranks"].split()}
    assert set(by_rank) == {str(rank) for rank in range(16) if rank not in (9, 14)}
    assert by_rank["8"]["waits_for"] == "9 14"
    page = (tmp_path / "report" / "report.html").read_text()
    assert "<h1>Flight Recorder: lock_gil</h1>" in page
    assert "What had not completed, and why?" in page
    assert page.index("What ranks wait in") < page.index('id="findings"')
    assert 'id="bandwidth"' not in page
    assert 'id="environment"' not in page


def test_a_barrier_in_flight_as_the_job_ends_is_no_stopped_job() -> None:
    """Rank 1 wrote its records before its last barrier had ended."""
    folder = DATA / "flight_recorder" / "gloo_late_rank"
    status, text = printed(folder, "table", verbose=True)
    assert status == 0
    assert "What ranks wait in" not in text
    joined = " ".join(text.split())
    assert "these are not compared between ranks: 2 dropped, unfinished or not timed" in joined
    assert "no transfer and no wait" not in joined


def test_without_one_rank_s_log_what_is_unknown_is_missing_and_not_zero(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of eight ranks rank 5 is late by 2 ms in each of 60 collectives, and rank 7's log is gone."""
    ranks = [
        [
            log_line(rank, number, 310.0 if rank == 5 else 2310.0, header={"n_ranks": 8})
            for number in range(60)
        ]
        for rank in range(7)
    ]
    folder = write_logs(tmp_path / "logs", ranks)
    _, text = printed(folder, "table")
    joined = " ".join(text.split())
    assert "COST not separated into waiting and moving data: no record of rank 7" in joined
    assert "rank 5 (node5) spends least in collectives (18.6 ms, the median rank 139 ms)" in joined
    assert "NEXT Add the records of rank 7" in joined
    printed(folder, "json")
    content = json.loads(capsys.readouterr().out)
    assert {round(row["communication_us"]) for row in content["by_rank"]} == {18_600, 138_600}
    for name in ("transfer_us", "wait_us", "caused_us", "shorter_us", "last"):
        assert {row[name] for row in content["by_rank"]} == {None}, name
    assert (content["by_host"], content["by_time"], content["by_rank_and_time"]) == ([], [], [])
