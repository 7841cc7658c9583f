"""What an export of Nsight Systems gives a trace, by rows stated one by one; and what is refused."""

import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from dpscope.analysis.traces.merge.merge_ranks import merge_traces
from dpscope.analysis.traces.ranks.reduce import reduce_traces
from dpscope.analysis.traces.ranks.trace_analysis import analyze_traces
from dpscope.analysis.traces.reading.chunks import ReadLimits
from dpscope.analysis.traces.reading.traces import read_traces
from dpscope.analysis.what_if.bases import base_of_traces
from dpscope.profiling.store.errors import DpscopeError
from tests.helpers.nsys_exports import GATHER, INIT, MESSAGE, REDUCE, Export, payload

GEMM, NCCL = "gemm", "ncclDevKernel_AllReduce_Sum_f32_RING_LL(args)"
GROUP = 0xABC
MS = 1_000_000


def two_ranks(path: Path, name: str = "train step", steps: int = 3) -> Export:
    """Two processes, a range of 10 ms per step: a kernel of 4 ms, and an all-reduce of 1,000,000 B
    that ends 8 ms after the step's begin; rank 1 comes 1 ms later, so rank 0 waits for 1 of 3 ms.
    """
    export = Export(path)
    for rank in range(2):
        for step in range(steps):
            begin = (step + 1) * 10 * MS
            export.range(f"{name} {step + 4}", (begin, begin + 9 * MS), rank)
            export.kernel(GEMM, (begin + MS, begin + 5 * MS), rank, begin + 1000)
            start = begin + (5 + rank) * MS
            call = (begin + 2000, begin + 3000)
            export.range("ncclAllReduce", call, rank, payload(REDUCE, GROUP, 1_000_000, 0))
            export.kernel(NCCL, (start, begin + 8 * MS), rank, begin + 2500, streamId=9)
    return export


def test_steps_are_the_ranges_that_repeat_at_the_top_level(tmp_path: Path) -> None:
    job = analyze_traces([two_ranks(tmp_path / "a.sqlite").close()])
    assert list(job.steps["step"]) == [4, 5, 6] * 2
    # from the end of one step's work to that of the next
    whole = job.steps[~job.steps["partial_window"]]
    assert list(whole["step_us"]) == [10_000.0] * 4
    assert list(whole["compute_us"]) == [4_000.0] * 4
    assert list(whole["wait_us"]) == [1_000.0, 1_000.0, 0.0, 0.0]
    assert list(whole["transfer_us"]) == [2_000.0] * 4
    assert "steps_by_range" in {one.code for one in job.findings}
    row = job.collectives.iloc[0]
    assert (row["kind"], row["bytes"], row["group"]) == ("all_reduce", 1_000_000, f"{GROUP:#018x}")
    assert row["group_size"] == 2  # both processes use the communicator


def test_ranges_that_hold_part_of_the_launches_are_no_steps(tmp_path: Path) -> None:
    export = two_ranks(tmp_path / "a.sqlite")
    export.connection.execute('update NVTX_EVENTS set "end" = start + 1500 where domainId = 0')
    path = export.close()  # the all-reduces are launched behind the ranges
    job = analyze_traces([path])
    assert "no_steps" in {one.code for one in job.findings}
    assert job.steps["step"].isna().all()
    requested = analyze_traces([path], ReadLimits(steps_by="train step"))
    assert list(requested.steps["step"]) == [4, 5, 6] * 2
    with pytest.raises(
        DpscopeError,
        match=r"no range named epoch \(--steps-by\).* most frequent ranges are train step",
    ):
        list(read_traces(path, ReadLimits(steps_by="epoch")))


def test_payloads_name_ranks_groups_and_sizes(tmp_path: Path) -> None:
    """Ranks in the reverse order of the processes; an all-gather states one rank's part."""
    export = two_ranks(tmp_path / "a.sqlite")
    for process in range(2):
        init = payload(INIT, GROUP, 2, 1 - process, process)
        export.range("ncclCommInitRankConfig", (1000, 2000), process, init)
        export.range("ncclAllGather", (3000, 4000), process, payload(GATHER, GROUP, 500))
        export.kernel("ncclDevKernel_AllGather_RING_LL", (5000, 9000), process, 3500)
    job = analyze_traces([export.close()])
    assert [one.rank for one in job.summaries] == [0, 1]
    assert [one.process_id for one in job.summaries] == [1001, 1000]
    gathers = job.collectives[job.collectives["kind"] == "all_gather"]
    assert list(gathers["bytes"]) == [1000, 1000]
    assert "ranks_assumed" not in {one.code for one in job.findings}


@pytest.mark.parametrize(("to_itself", "kind"), [(True, "all_to_all"), (False, "send_recv")])
def test_messages_to_every_rank_are_an_all_to_all(
    tmp_path: Path, to_itself: bool, kind: str
) -> None:
    """Sizes add up; a ring's exchange sends nothing to itself."""
    export = Export(tmp_path / "a.sqlite")
    for rank in range(2):
        export.range("ncclGroupStart", (1000, 1010), rank)
        for peer in range(2) if to_itself else (1 - rank,):
            content = payload(MESSAGE, GROUP, 300, peer)
            export.range("ncclSend", (1020 + 40 * peer, 1030 + 40 * peer), rank, content)
            export.range("ncclRecv", (1040 + 40 * peer, 1050 + 40 * peer), rank, content)
        export.range("ncclGroupEnd", (1200, 1300), rank)
        export.kernel("ncclDevKernel_SendRecv(args)", (2000, 3000 + rank), rank, 1250)
    rows = analyze_traces([export.close()]).collectives
    assert list(rows["kind"]) == [kind, kind]
    assert list(rows["bytes"]) == [600 if to_itself else 300] * 2
    assert rows["wait_us"].notna().all() == to_itself


def test_a_graph_of_one_row_is_reported(tmp_path: Path) -> None:
    """Its time is compute on one device; in a job that communicates its rank is left out."""
    alone = Export(tmp_path / "alone.sqlite")
    alone.kernel(GEMM, (1000, 2000), 0, 500)
    alone.work("GRAPH_TRACE", (3000, 9000), 0, correlationId=7)
    job = analyze_traces([alone.close()])
    assert list(job.steps["compute_us"]) == [7.0]
    assert job.communication_known
    several = two_ranks(tmp_path / "several.sqlite")
    several.work("GRAPH_TRACE", (3000, 9000), 0, correlationId=7)
    job = analyze_traces([several.close()])
    assert [(one.rank, one.communication_shown) for one in job.without_communication] == [
        (0, False)
    ]
    assert job.ledger is not None
    assert [one.severity for one in job.findings if one.code == "cuda_graphs"] == ["error"]


def test_clocks_of_two_files_are_their_sessions(tmp_path: Path) -> None:
    """The second session began 50 ms later, and its export counts from there."""
    for rank in range(2):
        export = Export(tmp_path / f"rank{rank}.sqlite")
        utc_ns = 1_700_000_000_000_000_000
        export.add("TARGET_INFO_SESSION_START_TIME", utcEpochNs=utc_ns + rank * 50 * MS)
        export.add("ANALYSIS_DETAILS", startTime=0)
        export.add("TARGET_INFO_SYSTEM_ENV", name="Hostname", value="node1")
        export.add("TARGET_INFO_SYSTEM_ENV", name="NvDriverVersion", value="580.1")
        export.add("TARGET_INFO_GPU", id=0, name="NVIDIA H100")
        export.add("StringIds", id=999, value="rank 0: NCCL version 2.27.5+cuda12.9")
        for step in range(2):
            begin = (100 - rank * 50 + step * 10) * MS
            # both end at the same time, and rank 1 comes 100 us later
            export.kernel(NCCL, (begin + rank * 100_000, begin + MS), rank, begin - 1000)
        export.close()
    job = analyze_traces([tmp_path])
    assert [one.rank for one in job.summaries] == [0, 1]
    assert job.summaries[0].start_ns == utc_ns + 100 * MS - 1000
    assert len({one.zero_ns for one in job.summaries}) == 1
    assert list(job.collectives["group_size"]) == [2] * 4  # nothing states it: those read
    assert list(job.collectives["wait_us"]) == pytest.approx([100, 100, 0, 0])
    facts = {"GPU": "NVIDIA H100", "Driver": "580.1", "NCCL": "2.27.5+cuda12.9"}
    assert dict(job.summaries[0].environment) == facts


def test_what_reads_traces_reads_exports(tmp_path: Path) -> None:
    """Merged, reduced and replayed they give the same steps."""
    path = two_ranks(tmp_path / "a.sqlite").close()
    job = analyze_traces([path])
    merged = merge_traces([path], tmp_path / "merged.json")
    assert [rank.title for rank in merged.ranks] == ["rank 0", "rank 1"]
    reduced = analyze_traces([reduce_traces([path], tmp_path / "a.dpscope").path])
    assert reduced.steps.equals(job.steps)
    assert reduced.foreign_format == "nsys export"
    base = base_of_traces([path]).base
    assert (base.devices, base.step_us) == (2, 10_000.0)


def without(*tables: str) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        connection = sqlite3.connect(path)
        for table in tables:
            connection.execute(f"drop table {table}")
        connection.commit()
        connection.close()

    return change


def renamed(path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.execute("alter table CUPTI_ACTIVITY_KIND_KERNEL rename column globalPid to pid")
    connection.commit()
    connection.close()


def of_text(path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.execute("update CUPTI_ACTIVITY_KIND_KERNEL set start = 'soon'")
    connection.commit()
    connection.close()


def newer(path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.execute("update META_DATA_EXPORT set value = '4.0.1'")
    connection.commit()
    connection.close()


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:5000])


def no_database(path: Path) -> None:
    path.write_text("{}")


_KERNELS = "CUPTI_ACTIVITY_KIND_KERNEL"


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (no_database, "is no SQLite database"),
        (cut, "is cut short: it has 5,000 of"),
        (without("StringIds", "META_DATA_EXPORT"), "no export of Nsight Systems"),
        (without(_KERNELS), f"holds no kernel .no table {_KERNELS}"),
        (renamed, f"{_KERNELS} has no column globalPid"),
        (of_text, f"{_KERNELS} holds a value that is no whole number"),
        (newer, "has version 4.0.1 of nsys's schema"),
    ],
)
def test_a_damaged_export_is_one_line(
    tmp_path: Path, damage: Callable[[Path], None], message: str
) -> None:
    path = two_ranks(tmp_path / "a.sqlite").close()
    damage(path)
    with pytest.raises(DpscopeError, match=message) as raised:
        list(read_traces(path))
    assert "\n" not in str(raised.value)
    assert str(path) in str(raised.value)


def test_a_report_is_refused_with_the_command_that_exports_it(tmp_path: Path) -> None:
    report = tmp_path / "a.nsys-rep"
    report.write_bytes(b"\x00" * 100)
    for paths in ([report], [tmp_path]):
        with pytest.raises(DpscopeError, match="nsys export --type sqlite --include-blobs=true"):
            analyze_traces(paths)
    two_ranks(tmp_path / "a.sqlite").close()
    assert len(analyze_traces([tmp_path]).summaries) == 2  # next to its export it is ignored


def test_an_export_that_is_written_to_is_not_read(tmp_path: Path) -> None:
    path = two_ranks(tmp_path / "a.sqlite").close()
    writer = sqlite3.connect(path, isolation_level=None)
    writer.execute("begin exclusive")
    with pytest.raises(DpscopeError, match=f"cannot read {path}: database is locked"):
        list(read_traces(path))
    writer.execute("rollback")
    writer.execute("pragma journal_mode = wal")
    writer.execute("update META_DATA_EXPORT set value = '4.0.1'")
    with pytest.raises(DpscopeError, match=r"has version 4\.0\.1"):  # as the log next to it says
        list(read_traces(path))
    writer.close()


def test_an_export_without_nvtx_has_times_and_no_steps(tmp_path: Path) -> None:
    path = two_ranks(tmp_path / "a.sqlite").close()
    without("NVTX_EVENTS", "NVTX_PAYLOAD_SCHEMA_ENTRIES")(path)
    job = analyze_traces([path])
    assert list(job.steps["compute_us"]) == [12_000.0, 12_000.0]
    codes = {one.code for one in job.findings}
    assert {"no_steps", "sizes_not_recorded", "ranks_assumed"} <= codes
    with pytest.raises(DpscopeError, match="raise --max-events"):
        list(read_traces(path, ReadLimits(max_events=3)))
    with pytest.raises(DpscopeError, match="raise --max-bytes"):
        list(read_traces(path, ReadLimits(max_bytes=100)))
