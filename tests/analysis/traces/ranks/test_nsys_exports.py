"""Exports of Nsight Systems: the values of real ones, and those of traces converted to exports."""

import gzip
import shutil
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from dpscope.analysis.findings.no_overlap import waiting_findings
from dpscope.analysis.findings.trace_limits import limits_of_traces
from dpscope.analysis.findings.verdict import traces_verdict
from dpscope.analysis.output.trace_tables import few_of_each_kind
from dpscope.analysis.traces.ranks.job import Job
from dpscope.analysis.traces.ranks.trace_analysis import analyze_traces
from dpscope.analysis.traces.reading.chunks import ReadLimits
from dpscope.profiling.store.errors import DpscopeError
from tests.generated_traces.ddp import DdpOptions, ddp_trace
from tests.generated_traces.dp import dp_trace
from tests.generated_traces.parallel_jobs import parallel_trace
from tests.generated_traces.writing import write_trace
from tests.helpers.known import known
from tests.helpers.nsys_exports import convert, load_trace
from tests.helpers.paths import DATA

A100 = [DATA / "a100x2_ddp_resnet50_rank0.json.gz"]
V100 = sorted((DATA / "v100x8_ddp_dlrm").glob("*.json.gz"))
_ROUNDING_US = 0.02  # of sums of hundreds of gaps, since an export rounds to nanoseconds


@pytest.fixture(scope="module")
def a100(tmp_path_factory: pytest.TempPathFactory) -> tuple[Job, Path]:
    """The trace of one rank of two, analysed, and its export."""
    export = convert([load_trace(A100[0])], tmp_path_factory.mktemp("a100") / "rank.sqlite")
    return analyze_traces(A100), export


def real_export(name: str, folder: Path) -> Path:
    path = folder / f"{name}.sqlite"
    path.write_bytes(gzip.decompress((DATA / f"{name}.sqlite.gz").read_bytes()))
    return path


def test_a_compressed_export_is_read_as_it_is(tmp_path: Path) -> None:
    packed = Path(shutil.copy(DATA / "nsys_two_ranks.sqlite.gz", tmp_path))
    plain = analyze_traces([real_export("nsys_two_ranks", tmp_path)])
    unpacked = analyze_traces([packed])
    assert unpacked.steps.equals(plain.steps)
    assert unpacked.summaries[0].source == f"{packed} (rank 0)"
    limit = ReadLimits(max_bytes=100_000)
    with pytest.raises(DpscopeError, match=r"sqlite.gz has [0-9,]+ bytes, more than are read"):
        analyze_traces([packed], limit)
    whole = packed.read_bytes()
    packed.write_bytes(whole[:10_000])
    with pytest.raises(DpscopeError, match=r"sqlite.gz is cut short; copy it again$"):
        analyze_traces([packed])
    packed.write_bytes(whole[:100] + b"\xff" * 10_000)
    with pytest.raises(DpscopeError, match=r"sqlite.gz is damaged: .*; copy it again$"):
        analyze_traces([packed])


def test_two_real_ranks(tmp_path: Path) -> None:
    """By hand with sqlite3, unions of intervals per device; the i-th kernels of NCCL of both ranks
    paired.
    """
    job = analyze_traces([real_export("nsys_two_ranks", tmp_path)])
    assert list(job.steps["rank"]) == list(job.steps["device"]) == [0, 1]
    columns = {
        "step_us": (299_848.812, 298_661.551),
        "compute_us": (253_690.832, 256_095.624),
        "communication_us": (17_172.652, 8_229.100),
        "exposed_us": (17_172.652, 8_229.100),
        "transfer_us": (5_777.111, 5_777.111),
        "wait_us": (11_395.541, 2_451.989),
    }
    for name, values in columns.items():
        assert list(job.steps[name]) == pytest.approx(values, abs=1e-3), name
    # the hand-computed idle time leaves out copies and memsets
    idle_us = job.steps["idle_us"] - job.steps["host_copy_us"] - job.steps["device_copy_us"]
    assert list(idle_us) == pytest.approx([26_031.025, 31_385.635], abs=1e-3)
    assert list(job.collectives.groupby("rank").size()) == [33, 33]
    assert set(job.collectives["kind"]) == {"all_to_all"}  # sends and receives with every rank
    assert job.collectives["bytes"].isna().all()
    assert {one.code for one in job.findings} == {
        "ranks_assumed", "sizes_not_recorded", "no_steps",
    }  # fmt: skip
    facts = dict(job.summaries[0].environment)
    assert facts == {"Driver": "580.95.05", "nsys": "2026.2.1.210"}


@pytest.mark.parametrize(
    "lost",
    [
        "UPDATE NVTX_EVENTS SET binaryData = NULL WHERE domainId = 1",  # without --include-blobs
        "DELETE FROM NVTX_EVENTS WHERE domainId = 1",  # with NCCL_NVTX_DISABLE
    ],
)
def test_one_rank_communicates_also_where_nothing_shows_with_how_many(
    tmp_path: Path, a100: tuple[Job, Path], lost: str
) -> None:
    """The same kernels as the trace, which records two ranks."""
    trace, export = a100
    path = Path(shutil.copy(export, tmp_path / "rank.sqlite"))
    with sqlite3.connect(path) as connection:
        connection.execute(lost)
    connection.close()
    job = analyze_traces([path])
    verdict = traces_verdict(job)
    exposed_us = known(known(trace.ledger).exposed_us)
    assert known(known(verdict.ledger).exposed_us) == pytest.approx(exposed_us, abs=_ROUNDING_US)
    assert verdict.setting.startswith("nsys export: 1 rank of an unknown number")
    (cost,) = [fact for fact in verdict.facts if fact.question == "cost"]
    assert cost.lines[0].startswith("communication takes 14.7 of the 222 ms")
    assert cost.lines[0].endswith("waiting included: only one process was read")
    overlap = {one.code for one in waiting_findings(trace)}
    assert {one.code for one in waiting_findings(job)} == overlap != set()


def test_a_real_export_without_nccl(tmp_path: Path) -> None:
    job = analyze_traces([real_export("nsys_no_nccl", tmp_path)])
    assert list(job.steps["compute_us"]) == pytest.approx([22_385.163, 22_444.359], abs=1e-3)
    assert (job.steps["communication_us"] == 0).all()
    assert not len(job.collectives)
    # 921 of the 947 ms that the devices idle are copies, as the sums over the export's memcpy give
    (following,) = [fact for fact in traces_verdict(job).facts if fact.question == "next"]
    assert following.lines[0].startswith(
        "Idle time of the devices (947 of 969 ms, 98%): for 921 ms only copies from or to the host"
    )
    advice = {one.code: one.next_step for one in job.findings}
    assert not [step for step in advice.values() if "profiler.step()" in step]
    assert "--steps-by" in advice["no_steps"]
    assert advice["ranks_assumed"].endswith("nsys profile -o rank%q{RANK}")  # no NCCL to name them
    (limit,) = limits_of_traces(job)
    assert limit.lines[1].startswith("Record an NVTX range around each training step")
    # no step is marked, so none of them is launched outside of one
    assert "events_of_no_step" not in advice


def test_a_folder_of_several_formats_names_what_was_not_read(tmp_path: Path) -> None:
    real_export("nsys_two_ranks", tmp_path)
    # an export's own report is no other job
    (tmp_path / "nsys_two_ranks.nsys-rep").write_bytes(b"")
    for name in ("a.json.gz", "b.json.gz"):
        (tmp_path / name).write_bytes(A100[0].read_bytes())
    analysis = analyze_traces(tmp_path)
    (limit,) = [one for one in limits_of_traces(analysis) if one.label == "NOT READ"]
    assert limit.lines[0].startswith(f"2 files: {tmp_path}/a.json.gz: trace, not read, because ")
    unread = [one for one in analysis.findings if one.code == "file_not_read"]
    (shown,) = few_of_each_kind(unread)  # one sentence of both
    assert shown.message.startswith(f"{tmp_path}/a.json.gz, {tmp_path}/b.json.gz: trace, not read,")
    assert shown.message.count("not read") == 1


def ddp(options: DdpOptions, ranks: int = 2) -> list[Mapping[str, Any]]:
    return [ddp_trace(rank, ranks, options).trace for rank in range(ranks)]


_GENERATED: dict[str, Sequence[Mapping[str, Any]]] = {
    "ddp": ddp(DdpOptions()),
    "late": ddp(DdpOptions(straggler=1)),
    "lag": ddp(DdpOptions(lag=True, unlaunched=True, extra_groups=True), ranks=4),
    "dp": [dp_trace(transport="peer_copy").trace],
    "dp by nccl": [dp_trace().trace],
    "sharded": [parallel_trace("fully_sharded", rank).trace for rank in range(4)],
}


def test_one_rank_and_its_export_have_equal_values(a100: tuple[Job, Path]) -> None:
    trace, export = a100
    assert_equal(trace, analyze_traces([export]))


@pytest.mark.parametrize("name", [*_GENERATED, "v100"])
def test_a_trace_and_its_export_have_equal_values(name: str, tmp_path: Path) -> None:
    files = V100
    if name != "v100":
        files = [
            write_trace(dict(trace), tmp_path / f"rank{rank}.json")
            for rank, trace in enumerate(_GENERATED[name])
        ]
    export = convert([load_trace(path) for path in files], tmp_path / "rank0.sqlite")
    assert_equal(analyze_traces(files), analyze_traces([export]))


def assert_equal(traced: Job, exported: Job) -> None:
    assert_equal_ledgers(traced, exported)
    for table in ("steps", "collectives"):
        assert_equal_tables(getattr(traced, table), getattr(exported, table), table)
    assert exported.foreign_format == "nsys export"


def assert_equal_ledgers(traced: Job, exported: Job) -> None:
    assert traced.ledger is not None
    assert exported.ledger is not None
    for field in fields(traced.ledger):
        values = [getattr(job.ledger, field.name) for job in (traced, exported)]
        if isinstance(values[0], float) or field.name.endswith("_us"):
            assert values[1] == pytest.approx(values[0], abs=_ROUNDING_US), field.name


# what an export names otherwise, or does not hold
_OTHERWISE = {"group", "group_ranks", "sequence", "match", "moved_as"}
_SIZES = {"bytes", "algbw_gb_per_s", "busbw_gb_per_s", "lower_bound_gb_per_s"}


def assert_equal_tables(traced: pd.DataFrame, exported: pd.DataFrame, name: str) -> None:
    assert len(traced) == len(exported), name
    known_sizes = "bytes" not in exported or exported["bytes"].notna().any()
    left_out = _OTHERWISE | (set() if known_sizes else _SIZES)
    for column in set(traced.columns) - left_out:
        first, second = (table[column].reset_index(drop=True) for table in (traced, exported))
        if pd.api.types.is_numeric_dtype(first) and not pd.api.types.is_bool_dtype(first):
            values = [pd.to_numeric(one).astype(float).to_numpy() for one in (first, second)]
            close = np.isclose(values[0], values[1], rtol=1e-4, atol=0.05, equal_nan=True)
        else:
            close = (first.astype(str) == second.astype(str)).to_numpy()
        assert close.all(), f"{name}.{column}: {list(first[~close])} {list(second[~close])}"
