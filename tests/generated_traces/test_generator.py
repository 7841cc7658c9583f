"""The structure of the generated traces, and how they are relabelled and written."""

import ast
import json
from collections import Counter
from itertools import pairwise

import pytest

from tests.generated_traces.generator import DdpOptions, GeneratedTrace, Trace, ddp_trace, dp_trace, relabel
from tests.generated_traces.grid import ALL_TRACES, DEVICE_TRACES, ddp_options
from tests.generated_traces.raster import DEVICE_CATEGORIES, by_step, complete_events, launch_calls, span, step_ranges
from tests.helpers.paths import ROOT


def test_kernel_metadata_states_the_expected_sizes() -> None:
    generated = ddp_trace(1, 4, DdpOptions(extra_groups=True))
    kernels = {e["ts"]: e["args"] for e in complete_events(generated.trace, "kernel") if "nccl" in e["name"]}
    sizes = {"Float": 4, "Long": 8}
    assert len(generated.expected.collectives) == 24
    for row in generated.expected.collectives:
        args = kernels[generated.expected.zero_us + row.start_us]
        elements = max(args["In msg nelems"], args["Out msg nelems"])
        assert row.bytes == elements * sizes[args["dtype"]]
        assert (row.group, row.sequence) == (args["Process Group Name"], args["Seq"])
        assert row.group_size == args["Group size"] == len(json.loads(args["Process Group Ranks"]))
    buckets = [row.bytes for row in generated.expected.collectives if row.kind == "all_reduce" and row.step == 5]
    assert sum(size for size in buckets if size) == generated.expected.gradient_bytes == 19520000


@pytest.mark.parametrize(
    ("metadata", "on_kernels", "on_operators", "with_dims"),
    [("kernel", 5, 5, True), ("partial", 2, 5, True), ("ops", 0, 0, True), ("none", 0, 0, False)],
)
def test_metadata_is_where_the_variant_puts_it(
    metadata: str, on_kernels: int, on_operators: int, with_dims: bool
) -> None:
    trace = ddp_trace(0, 2, ddp_options()[metadata if metadata != "kernel" else "nccl_2_19"]).trace
    stated = "In msg nelems"
    kernels = [e for e in complete_events(trace, "kernel") if "nccl" in e["name"]]
    records = [e for e in complete_events(trace, "cpu_op") if e["name"] == "record_param_comms"]
    collectives = [e for e in records if e["args"].get("Collective name") != "wait"]
    assert sum(stated in event["args"] for event in kernels) == 3 * on_kernels
    assert sum(stated in event["args"] for event in collectives) == 3 * on_operators
    assert any("Input Dims" in event["args"] for event in collectives) == with_dims
    records_by_id = {event["args"]["External id"]: event for event in records}
    assert all(event["args"]["External id"] in records_by_id for event in kernels)


@pytest.mark.parametrize("name", DEVICE_TRACES)
def test_every_kernel_has_its_launch_and_its_flow(name: str) -> None:
    generated = DEVICE_TRACES[name]
    calls = complete_events(generated.trace, "cuda_runtime")
    events = complete_events(generated.trace, *DEVICE_CATEGORIES)
    correlations = [event["args"]["correlation"] for event in events]
    by_correlation = launch_calls(generated.trace)
    assert len(set(correlations)) == len(correlations)
    assert len(by_correlation) == len(calls)
    without = [event for event in events if event["args"]["correlation"] not in by_correlation]
    assert len(without) == generated.expected.unlaunched_count
    assert sum(event["dur"] for event in without) == generated.expected.unlaunched_us
    flows = Counter((e["ph"], e["id"]) for e in generated.trace["traceEvents"] if e.get("cat") == "ac2g")
    launched = [event for event in events if event["args"]["correlation"] in by_correlation]
    for event in launched:
        correlation = event["args"]["correlation"]
        assert by_correlation[correlation]["ts"] <= event["ts"]
        assert flows["s", correlation] == flows["f", correlation] == 1
    assert sum(flows.values()) == 2 * len(launched)
    assert sum(len(events) for events in by_step(generated.trace).values()) == len(launched)


@pytest.mark.parametrize("name", ALL_TRACES)
def test_threads_nest_and_streams_run_one_thing_at_a_time(name: str) -> None:
    trace = ALL_TRACES[name].trace
    threads: dict[tuple[int, int], list[tuple[float, float]]] = {}
    for event in complete_events(trace, "cpu_op", "user_annotation", "cuda_runtime"):
        if "gloo:" not in event["name"]:  # these overlap: they begin when the work is created
            threads.setdefault((event["pid"], event["tid"]), []).append(span(event))
    for spans in threads.values():
        ordered = sorted(spans, key=lambda times: (times[0], -times[1]))
        open_ends: list[float] = []
        for start, end in ordered:
            open_ends = [other for other in open_ends if other > start]
            assert all(end <= other for other in open_ends)
            open_ends.append(end)
    streams: dict[tuple[int, int], list[tuple[float, float]]] = {}
    for event in complete_events(trace, *DEVICE_CATEGORIES):
        assert event["tid"] == event["args"]["stream"]
        streams.setdefault((event["pid"], event["tid"]), []).append(span(event))
    for spans in streams.values():
        assert all(end <= start for (_, end), (start, _) in pairwise(sorted(spans)))


@pytest.mark.parametrize("name", [name for name in DEVICE_TRACES if "-lag" in name])
def test_lagging_devices_are_more_than_a_step_behind(name: str) -> None:
    trace = DEVICE_TRACES[name].trace
    steps = by_step(trace)
    calls = launch_calls(trace)
    last_launch = max(calls[event["args"]["correlation"]]["ts"] for event in steps[7])
    assert last_launch < max(span(event)[1] for event in steps[5])


def test_named_ranges_and_lag_leave_the_devices_as_they_are() -> None:
    def work(trace: Trace) -> list[tuple[object, ...]]:
        keys = ("name", "pid", "tid", "ts", "dur")
        return sorted(tuple(e[key] for key in keys) for e in complete_events(trace, *DEVICE_CATEGORIES))

    plain = work(dp_trace(4).trace)
    assert plain == work(dp_trace(4, named_ranges=False).trace) == work(dp_trace(4, lag=True).trace)
    assert len(plain) > 100


def test_traces_without_named_ranges_hold_none_and_expect_none() -> None:
    for generated in (dp_trace(2, named_ranges=False), ddp_trace(0, 2, DdpOptions(named_ranges=False))):
        names = {event["name"] for event in generated.trace["traceEvents"]}
        assert not any(name.startswith("dpscope::") for name in names)
        assert all(step.range_us == {} for step in generated.expected.steps.values())


def test_peer_copies_name_both_devices_and_no_collective_of_dp_has_metadata() -> None:
    copies = [
        event for event in complete_events(dp_trace(4, "peer_copy").trace, "gpu_memcpy") if "PtoP" in event["name"]
    ]
    assert len(copies) == 3 * (4 * 3 + 3 + 3 + 2 * 3)
    for event in copies:
        assert event["args"]["inDevice"] == event["args"]["fromDevice"] == event["pid"]
        assert event["args"]["toDevice"] != event["pid"]
        assert "device" not in event["args"]
    kernels = [e for e in complete_events(dp_trace(4).trace, "kernel") if "nccl" in e["name"]]
    assert len(kernels) == 3 * 4 * 6
    assert not any("Collective name" in event["args"] for event in kernels)


@pytest.mark.parametrize(
    "generated",
    [dp_trace(2), ddp_trace(1, 4, ddp_options()["lag-unlaunched"]), ddp_trace(0, 2, ddp_options()["rccl"])],
    ids=["dp", "ddp, lagging", "ddp, rccl"],
)
def test_relabel_moves_everything_and_changes_no_measure(generated: GeneratedTrace) -> None:
    before = json.dumps(generated.trace)
    moved = relabel(
        generated.trace,
        time_shift_us=-1234567890.5,
        correlation_offset=700000,
        stream_offset=13,
        step_offset=30,
        external_id_offset=99,
    )
    assert json.dumps(generated.trace) == before
    assert set(step_ranges(moved)) == {35, 36, 37}
    steps, moved_steps = by_step(generated.trace), by_step(moved)
    for step in steps:
        assert len(steps[step]) == len(moved_steps[step + 30]) > 0
        for event, other in zip(steps[step], moved_steps[step + 30], strict=True):
            assert other["ts"] == event["ts"] - 1234567890.5
            assert other["dur"] == event["dur"]
            assert other["tid"] == other["args"]["stream"] == event["tid"] + 13
            assert other["args"]["correlation"] == event["args"]["correlation"] + 700000
    flows = {event["id"] for event in moved["traceEvents"] if event.get("cat") == "ac2g"}
    assert flows == {e["args"]["correlation"] for events in moved_steps.values() for e in events}
    back = relabel(moved, 1234567890.5, -700000, -13, -30, -99)
    assert back == generated.trace


def test_the_generator_shares_no_code_with_dpscope() -> None:
    here = ROOT / "tests" / "generated_traces"
    sources = [path for path in here.glob("*.py") if not path.name.startswith("test_")]
    assert len(sources) > 8
    for source in sources:
        for node in ast.walk(ast.parse(source.read_text())):
            if isinstance(node, ast.ImportFrom):
                assert not (node.module or "").startswith("dpscope")
            if isinstance(node, ast.Import):
                assert not any(alias.name.startswith("dpscope") for alias in node.names)
