"""Collectives that do not look like the usual ones: copy engines, CUDA graphs, generic kernels, queues, other jobs."""

from pathlib import Path

import pandas as pd
import pytest

from dpscope.analysis.traces.ranks.trace_analysis import TraceAnalysis, analyze_traces
from tests.generated_traces.builder import Generation
from tests.generated_traces.collective_cases import (
    as_second_engine,
    copy_engine_trace,
    cuda_graph_trace,
    generic_trace,
    gloo_queue_trace,
    shared_range_trace,
)
from tests.generated_traces.generator import DdpOptions, Trace, ddp_trace, dp_trace, write_trace
from tests.helpers.generated_checks import check_job, parallelism


def analyzed(tmp_path: Path, *traces: Trace) -> TraceAnalysis:
    for rank, trace in enumerate(traces):
        write_trace(trace, tmp_path / f"0_{rank}.pt.trace.json")
    return analyze_traces([tmp_path])


def test_collectives_by_copy_engines(tmp_path: Path) -> None:
    analysis = analyzed(tmp_path, copy_engine_trace())
    table = analysis.collectives
    assert table["kind"].tolist() == ["all_gather", "reduce_scatter"]
    assert table["bytes"].tolist() == [16_000, 16_000]
    assert table["duration_us"].tolist() == [60.0, 30.0]
    (step,) = analysis.steps.to_dict("records")
    # communication 60 + 30, 10 of it under the kernel; copies 10 (unpack), 10 from the host; the kernel 20
    assert (step["communication_us"], step["hidden_us"], step["exposed_us"]) == (90.0, 10.0, 80.0)
    assert (step["compute_us"], step["host_copy_us"], step["device_copy_us"]) == (20.0, 10.0, 10.0)
    assert step["collective_count"] == 2
    assert parallelism(analysis).startswith("unknown: no operators of a backward pass")


def test_ranges_of_the_second_engine_are_known_without_their_prefix(tmp_path: Path) -> None:
    """The same trace, within operators of c10d: 60 us by copy engines and 30 by a kernel, as above."""
    trace = as_second_engine(copy_engine_trace())
    ranges = [one for one in trace["traceEvents"] if one["name"] in ("_all_gather_base", "_reduce_scatter_base")]
    assert len(ranges) == 2
    trace["traceEvents"] += [{**one, "cat": "cpu_op", "name": f"c10d::{one['name']}_", "args": {}} for one in ranges]
    table = analyzed(tmp_path, trace).collectives
    assert table["kind"].tolist() == ["all_gather", "reduce_scatter"]
    assert table["duration_us"].tolist() == [60.0, 30.0]


def test_a_range_that_somebody_named_so_is_no_collective(tmp_path: Path) -> None:
    """No operator of c10d around it and no record within: the copies only copy, and the kernel is identified by its name."""
    table = analyzed(tmp_path, as_second_engine(copy_engine_trace())).collectives
    assert table["kind"].tolist() == ["reduce_scatter"]


@pytest.mark.parametrize("kernel_names", ["nccl_2_19", "symmetric", "rccl"])
def test_ddp_on_the_second_engine(tmp_path: Path, kernel_names: Generation) -> None:
    """Steps and collectives as on the first; only the ranks of groups are not recorded."""
    ranks = [ddp_trace(rank, 2, DdpOptions(kernel_names=kernel_names)) for rank in range(2)]
    analysis = analyzed(tmp_path, *(as_second_engine(one.trace) for one in ranks))
    check_job(analysis, ranks)


def test_a_copy_at_world_size_one_is_no_communication(tmp_path: Path) -> None:
    trace = copy_engine_trace(world_size=1)
    trace["traceEvents"] = [event for event in trace["traceEvents"] if "PtoP" not in event["name"]]
    trace["traceEvents"] = [event for event in trace["traceEvents"] if "ncclDev" not in event["name"]]
    analysis = analyzed(tmp_path, trace)
    (step,) = analysis.steps.to_dict("records")
    assert (step["communication_us"], step["host_copy_us"], step["device_copy_us"]) == (0.0, 10.0, 40.0)
    assert step["collective_count"] == 0
    assert analysis.collectives.empty
    assert not {"trace_incomplete", "parallelism"} & {finding.code for finding in analysis.findings}


def test_replayed_graphs_share_a_launch_and_have_no_sizes(tmp_path: Path) -> None:
    analysis = analyzed(tmp_path, cuda_graph_trace())
    assert analysis.steps["collective_count"].tolist() == [2, 2]
    assert analysis.steps["communication_us"].tolist() == [100.0, 100.0]
    assert analysis.steps["hidden_us"].tolist() == [30.0, 30.0]
    assert analysis.collectives["kind"].tolist() == ["all_reduce"] * 4
    assert analysis.collectives["bytes"].isna().all()
    assert "events_of_no_step" not in {finding.code for finding in analysis.findings}
    assert parallelism(analysis).startswith("unknown: no operators of a backward pass")


@pytest.mark.parametrize(
    ("enclosing", "kind", "size"),
    [
        ("operator", "all_reduce", None),
        ("range", "reduce_scatter", None),
        ("metadata", "all_gather", 80),
        ("nothing", None, None),
    ],
)
def test_generic_kernels_take_their_kind_from_what_launched_them(
    tmp_path: Path, enclosing: str, kind: str | None, size: int | None
) -> None:
    analysis = analyzed(tmp_path, generic_trace(enclosing))
    (row,) = analysis.collectives.to_dict("records")
    assert (None if pd.isna(row["kind"]) else row["kind"]) == kind
    assert (None if pd.isna(row["bytes"]) else row["bytes"]) == size
    assert row["device"] == 2
    (step,) = analysis.steps.to_dict("records")
    # stream 0 computes from 50 to 150, the kernel communicates from 100 to 200
    assert (step["device"], step["compute_us"], step["hidden_us"], step["exposed_us"]) == (2, 100.0, 50.0, 50.0)


def test_devices_are_identified_by_process_id_if_nothing_else_names_them(tmp_path: Path) -> None:
    trace = generic_trace("range")
    for event in trace["traceEvents"]:
        if event.get("cat") == "kernel":
            del event["args"]["device"]
    assert analyzed(tmp_path, trace).steps["device"].tolist() == [2]


def test_a_range_of_several_kernels_gives_its_size_to_none(tmp_path: Path) -> None:
    table = analyzed(tmp_path, shared_range_trace()).collectives
    assert table["bytes"].fillna(-1).tolist() == [-1, -1, 2000]
    assert table["kind"].tolist() == ["all_reduce"] * 3


@pytest.mark.parametrize("begins", ["created", "taken_up"])
def test_queueing_of_gloos_works(tmp_path: Path, begins: str) -> None:
    table = analyzed(tmp_path, gloo_queue_trace(begins)).collectives
    assert table.sort_values("order")["queue_us"].tolist() == [0.0, 0.0, 50.0, 60.0]


def test_queueing_is_unknown_without_the_operators(tmp_path: Path) -> None:
    table = analyzed(tmp_path, gloo_queue_trace("alone")).collectives
    assert table["queue_us"].isna().all()


@pytest.mark.parametrize("world_size", [2, 4])
@pytest.mark.parametrize("metadata", ["kernel", "no_sequence"])
def test_several_groups(tmp_path: Path, world_size: int, metadata: str) -> None:
    """An all-to-all of all, and an all-gather and a reduce-scatter of pairs, as FSDP and DLRM have them."""
    options = DdpOptions(extra_groups=True, metadata=metadata)  # type: ignore[arg-type]
    ranks = [ddp_trace(rank, world_size, options) for rank in range(world_size)]
    analysis = analyzed(tmp_path, *(rank.trace for rank in ranks))
    check_job(analysis, ranks)
    assert "sharded" in parallelism(analysis)
    assert "process groups" in parallelism(analysis)


def test_sizes_of_gathers_and_scatters_from_their_operators(tmp_path: Path) -> None:
    """Shapes alone: output and input are both recorded, and their types; the larger counts."""
    generated = ddp_trace(0, 2, DdpOptions(extra_groups=True, metadata="ops"))
    table = analyzed(tmp_path, generated.trace).collectives
    expected = {
        one.kind: one.bytes for one in ddp_trace(0, 2, DdpOptions(extra_groups=True)).expected.collectives
        if one.kind in ("all_gather", "reduce_scatter", "all_to_all")
    }  # fmt: skip
    assert len(expected) == 3
    for kind, size in expected.items():
        assert set(table.loc[table["kind"] == kind, "bytes"]) == {size}


@pytest.mark.long
def test_the_parallelism_is_reported_with_its_evidence(tmp_path: Path) -> None:
    ddp = analyzed(tmp_path, *(ddp_trace(rank, 2).trace for rank in range(2)))
    assert parallelism(ddp).startswith("DDP-like; seen in 2 traces: 18 all_reduce")
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    dp = analyzed(tmp_path / "a", dp_trace(2).trace)
    assert parallelism(dp).startswith("DataParallel")
    trace = ddp_trace(0, 2).trace
    reducing = ("allreduce", "all_reduce", "AllReduce")
    forward_only = [
        event for event in trace["traceEvents"]
        if not any(word in f"{event['name']} {event.get('args', {}).get('Collective name')}" for word in reducing)
    ]  # fmt: skip
    other = analyzed(tmp_path / "b", {**trace, "traceEvents": forward_only})
    assert parallelism(other).startswith("not DDP: it all-reduces no gradients")


def test_groups_made_by_splitting_share_a_name(tmp_path: Path) -> None:
    """Two pairs of ranks whose groups are both called "1": their ranks distinguish them."""
    ranks = [ddp_trace(rank, 4, DdpOptions(extra_groups=True)) for rank in range(4)]
    for generated in ranks:
        for event in generated.trace["traceEvents"]:
            if event.get("args", {}).get("Process Group Name") == "2":
                event["args"]["Process Group Name"] = "1"
    analysis = analyzed(tmp_path, *(rank.trace for rank in ranks))
    gathered = analysis.collectives[analysis.collectives["kind"] == "all_gather"]
    assert set(gathered["group"]) == {"1"}
    assert set(gathered["group_ranks"]) == {"[0, 1]", "[2, 3]"}
    assert gathered["transfer_us"].notna().all()
    assert "collectives_unmatched" not in {finding.code for finding in analysis.findings}
