"""What a strategy must have moved: a trace that lacks it never reads as "no communication"."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dpscope.analysis.runs.traffic_check import check_traffic, expected_bytes
from dpscope.analysis.traces.ranks.job import NO_TABLES, Job
from dpscope.analysis.traces.ranks.trace_analysis import analyze_traces
from dpscope.analysis.traces.reading.table import Table
from dpscope.profiling.records.finding import Finding
from dpscope.profiling.records.run import Cell, CellOptions, ParameterSizes, ShardedUnit, TensorSize
from dpscope.profiling.records.strategies import CellStrategy
from tests.generated_traces.generator import (
    DdpOptions,
    GeneratedTrace,
    Trace,
    Transport,
    ddp_trace,
    dp_trace,
    write_trace,
)
from tests.helpers.known import known
from tests.helpers.run_cells import traced_table

MIB = 1 << 20


def sizes_of(generated: GeneratedTrace) -> ParameterSizes:
    """The generated model: parameters of 6, 6 and 3 MiB; 38,400 B of fp32 and 160 B of int64
    buffers.
    """
    expected = generated.expected
    return ParameterSizes(
        parameter_count=expected.gradient_bytes // 4,
        parameter_bytes=expected.parameter_bytes,
        gradient_bytes=expected.gradient_bytes,
        buffer_bytes=expected.buffer_bytes,
        parameter_tensors=tuple(TensorSize(dtype="float", bytes=size * MIB) for size in (6, 6, 3)),
        buffer_tensors=(
            TensorSize(dtype="float", bytes=38_400),
            TensorSize(dtype="long", bytes=160),
        ),
    )


def check(tmp_path: Path, cell: Cell, *ranks: GeneratedTrace) -> list[Finding]:
    for rank, generated in enumerate(ranks):
        write_trace(generated.trace, tmp_path / f"0_{rank}.pt.trace.json")
    return checked(cell, sizes_of(ranks[0]), analyze_traces([tmp_path]))


def checked(cell: Cell, sizes: ParameterSizes, analysis: Job) -> list[Finding]:
    ranges, tables = [summary.range_counts for summary in analysis.summaries], analysis.tables
    return check_traffic(cell, sizes, tables.steps, tables.collectives, ranges, tables.copies)


def without(generated: GeneratedTrace, lost: Callable[[Trace], bool]) -> GeneratedTrace:
    kept = [event for event in generated.trace["traceEvents"] if not lost(event)]
    return replace(generated, trace={**generated.trace, "traceEvents": kept})


DDP = Cell(strategy="ddp", devices=2, batch_size=4)
DP = Cell(strategy="dp", devices=2, batch_size=4)
TRANSPORTS: tuple[Transport, ...] = ("nccl", "peer_copy")


TWO_RANKS = [ddp_trace(rank, 2) for rank in range(2)]


def from_device_2() -> GeneratedTrace:
    """Devices need not begin at 0, as in traces of ROCm."""
    generated = dp_trace(2, "nccl")
    for event in generated.trace["traceEvents"]:
        if event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset"):
            event["pid"] += 2
            places = {
                name: event["args"][name] + 2
                for name in ("device", "inDevice")
                if name in event["args"]
            }
            event["args"] = event["args"] | places
    return generated


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize(
    "ranks",
    [
        TWO_RANKS,
        *([dp_trace(devices, transport)] for devices in (2, 4) for transport in TRANSPORTS),
        [from_device_2()],
    ],
)
def test_what_moved_is_enough(tmp_path: Path, ranks: list[GeneratedTrace], frozen: bool) -> None:
    """DataParallel also reduces the zeros of frozen parameters: of 15 MiB 6 are trained."""
    cell = (
        DDP
        if ranks is TWO_RANKS
        else Cell("dp", devices=len(ranks[0].expected.steps) // 3, batch_size=4)
    )
    if frozen and cell.strategy == "dp":
        ranks = [replace(ranks[0], expected=replace(ranks[0].expected, gradient_bytes=6 * MIB))]
    assert check(tmp_path, cell, *ranks) == []


def last_bucket_lost() -> list[GeneratedTrace]:
    events = TWO_RANKS[1].trace["traceEvents"]
    last = [
        event for event in events if event.get("cat") == "kernel" and "AllReduce" in event["name"]
    ][-1]
    return [TWO_RANKS[0], without(TWO_RANKS[1], lambda event: event is last)]


def cut_out(transport: Transport, word: str) -> list[GeneratedTrace]:
    of_kind = ("kernel", "gpu_memcpy")
    return [
        without(
            dp_trace(2, transport),
            lambda event: event.get("cat") in of_kind and word in event["name"],
        )
    ]


def without_device_1() -> list[GeneratedTrace]:
    on_device = ("kernel", "gpu_memcpy", "gpu_memset")
    return [
        without(
            dp_trace(2, "nccl"), lambda event: event.get("cat") in on_device and event["pid"] == 1
        )
    ]


@pytest.mark.parametrize(
    ("cell", "ranks", "shown"),
    [
        (
            DDP,
            [ddp_trace(rank, 2, DdpOptions(communication=False)) for rank in range(2)],
            "the trace shows none",
        ),
        (DDP, last_bucket_lost(), "(rank 1, step"),
        (DDP, TWO_RANKS[:1], "traces of 2 ranks"),
        (DP, cut_out("nccl", "Reduce"), ""),
        (DP, cut_out("nccl", "Broadcast"), ""),
        (DP, cut_out("peer_copy", "PtoP"), ""),
        (DP, without_device_1(), "expected 2 devices at work, the trace shows 1"),
    ],
)
def test_a_trace_that_lacks_something_is_incomplete(
    tmp_path: Path, cell: Cell, ranks: list[GeneratedTrace], shown: str
) -> None:
    (finding,) = check(tmp_path, cell, *ranks)
    assert (finding.severity, finding.code) == ("error", "trace_incomplete")
    assert shown in finding.message


def of_tables(
    cell: Cell,
    sizes: ParameterSizes,
    steps: Table,
    collectives: Table,
    *ranges: dict[str, dict[int | None, int]],
    units: Sequence[ShardedUnit] = (),
) -> list[str]:
    found = check_traffic(cell, sizes, steps, collectives, ranges, NO_TABLES.copies, None, units)
    assert {one.code for one in found} <= {"trace_incomplete"}
    return [one.message for one in found]


BLOCK = ShardedUnit(
    name="0", shapes=((10, 3), (4,)), trained=(True, False), element_bytes=(4, 4), resharded=True
)
ROOT = ShardedUnit(name="", shapes=((6,),), trained=(True,), element_bytes=(2,), resharded=False)


@pytest.mark.parametrize(
    ("strategy", "devices", "options", "expected"),
    [
        # Two devices: 10 x 3 x 4 B + 4 x 4 B = 136 B twice and 6 x 2 B = 12 B once; trained are 120
        # B and 12 B.
        ("fsdp", 2, {}, {"all_gather": 284, "reduce_scatter": 132}),
        ("fsdp-no-reshard", 2, {}, {"all_gather": 148, "reduce_scatter": 132}),
        # Each micro-batch gathers again; only the last one reduces.
        ("fsdp", 2, {"accumulate": 3}, {"all_gather": 852, "reduce_scatter": 132}),
        # Four devices: 10 rows are cut into 4 x 3, 6 elements into 4 x 2: (144 + 16) x 2 + 16, and
        # 144 + 16.
        ("fsdp", 4, {}, {"all_gather": 336, "reduce_scatter": 160}),
        # Two groups of two: as on two devices, and each rank's half of 132 B is all-reduced.
        ("hsdp", 4, {}, {"all_gather": 284, "reduce_scatter": 132, "all_reduce": 66}),
        # Eight devices, two groups of four: as on four devices, and a quarter of 160 B.
        ("hsdp", 8, {}, {"all_gather": 336, "reduce_scatter": 160, "all_reduce": 40}),
        # 10 x 3 + 6 trained numbers reduced in two bytes each: 72 B, of which each rank of HSDP
        # holds half.
        ("fsdp", 2, {"comm_hook": "bf16"}, {"all_gather": 284, "reduce_scatter": 72}),
        (
            "hsdp",
            4,
            {"comm_hook": "bf16"},
            {"all_gather": 284, "reduce_scatter": 72, "all_reduce": 36},
        ),
    ],
)
def test_bytes_by_a_pocket_calculation(
    strategy: CellStrategy, devices: int, options: dict[str, Any], expected: dict[str, int]
) -> None:
    block = msgspec.structs.replace(BLOCK, resharded=strategy != "fsdp-no-reshard")
    assert (
        expected_bytes(Cell(strategy, devices, 4, options=CellOptions(**options)), (block, ROOT))
        == expected
    )


CELL = Cell(strategy="fsdp", devices=2, batch_size=4)
SIZES = ParameterSizes(parameter_count=1, parameter_bytes=4, gradient_bytes=4, buffer_bytes=0)
NO_SCATTERS = "reduce-scatters of 132 B a step, the trace shows"


@pytest.mark.parametrize(
    ("ranks", "moved", "lacking"),
    [
        (2, {"all_gather": 284, "reduce_scatter": 132}, None),
        (2, {"all_gather": 290, "reduce_scatter": 130}, None),  # within 5%
        (
            2,
            {"all_gather": 148, "reduce_scatter": 132},
            "all-gathers of 284 B a step, the trace shows 148 B (rank 0, step 1)",
        ),
        (2, {"all_gather": 284}, f"{NO_SCATTERS} none (rank 0, step 1)"),
        (
            2,
            {"all_gather": 284, "reduce_scatter": None},
            f"{NO_SCATTERS} 1 without sizes (rank 0, step 1)",
        ),
        (2, {}, "all-gathers of 284 B"),
        (1, {"all_gather": 284, "reduce_scatter": 132}, "traces of 2 ranks"),
    ],
)
def test_sharded_traffic_that_is_not_shown(
    ranks: int, moved: dict[str, int | None], lacking: str | None
) -> None:
    places = [{"rank": rank, "step": step} for rank in range(ranks) for step in (1, 2)]
    steps = traced_table("steps", places).assign(device=0, partial_window=False)
    rows = (
        {**place, "kind": kind, "bytes": size} for place in places for kind, size in moved.items()
    )
    messages = of_tables(CELL, SIZES, steps, traced_table("collectives", rows), units=(BLOCK, ROOT))
    assert len(messages) == (lacking is not None)
    assert all(known(lacking) in one for one in messages)


def reduced(*moved: tuple[int, int, int | None]) -> tuple[Table, Table]:
    """Steps 0 and 1 of two ranks, and all-reduces: rank, step, bytes."""
    steps = [
        {"rank": rank, "device": rank, "step": step, "partial_window": False}
        for rank in (0, 1)
        for step in (0, 1)
    ]
    rows = [
        {"rank": rank, "device": rank, "step": step, "kind": "all_reduce", "bytes": size}
        for rank, step, size in moved
    ]
    return traced_table("steps", steps), traced_table("collectives", rows)


EACH = [(rank, step) for rank in (0, 1) for step in (0, 1)]


@pytest.mark.parametrize(
    ("moved", "cause"),
    [
        # such as a frozen body
        ([(*one, 600) for one in EACH], "DDP reduces a part of the gradients alone"),
        ([(*one, 600) for one in EACH[:3]], "the tracer lost events"),
        ([*((*one, 600) for one in EACH[:3]), (1, 1, 500)], "the tracer lost events"),
        ([*((*one, 600) for one in EACH), (1, 1, None)], "the tracer lost events"),
        ([], "the tracer lost events"),
        ([(*one, 1200) for one in EACH], "the tracer lost events"),  # more than the gradients
    ],
)
def test_lost_events_are_the_cause_only_where_ranks_or_steps_differ(
    moved: list[tuple[int, int, int | None]], cause: str
) -> None:
    sizes = ParameterSizes(
        parameter_count=250, parameter_bytes=1000, gradient_bytes=1000, buffer_bytes=0
    )
    (finding,) = check_traffic(DDP, sizes, *reduced(*moved), (), NO_TABLES.copies)
    assert finding.next_step.startswith(f"likely cause: {cause}")
    assert ("measure the cell again" in finding.next_step) == cause.startswith("the tracer")
