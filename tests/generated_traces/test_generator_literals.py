"""The generator's expected values, counted again on a grid of half microseconds, without dpscope."""

from collections import Counter

import pytest

from tests.generated_traces.generator import ExpectedCollective, ExpectedPhase, ExpectedStep, Trace
from tests.generated_traces.grid import (
    ALL_TRACES,
    DEVICE_TRACES,
    GLOO_TRACES,
    JOBS,
    by_step,
    cells,
    complete_events,
    contains,
    is_communication,
    is_compute,
    launch_calls,
    length_us,
    span,
    step_ranges,
)

# Each all-device collective's bus bandwidth over its algorithm bandwidth, by group size n.
BUS_FACTORS = {"all_reduce": 2.0, "all_gather": 1.0, "reduce_scatter": 1.0, "all_to_all": 1.0}
NAMED_DP = [name for name in DEVICE_TRACES if "-named" in name]
NAMED = [*NAMED_DP, *(name for name in DEVICE_TRACES if name.startswith("ddp") and not name.endswith("-ops"))]


@pytest.mark.parametrize("name", DEVICE_TRACES)
def test_step_literals_on_a_grid(name: str) -> None:
    generated = DEVICE_TRACES[name]
    zero = generated.expected.zero_us
    steps = by_step(generated.trace)
    launched = [event for events in steps.values() for event in events]
    assert len(steps) == 3
    ends = [max(span(event)[1] for event in events) for events in steps.values()]
    starts = [min(event["ts"] for event in launched), *ends[:-1]]
    for step, start, end in zip(steps, starts, ends, strict=True):
        window = set(range(int(2 * start), int(2 * end)))
        for device in {event["pid"] for event in launched}:
            expected = generated.expected.steps[device, step]
            assert expected.window_us == (start - zero, end - zero)
            own = [event for event in launched if event["pid"] == device]
            check_measures(expected, own, window, is_whole=generated.expected.complete)
            outside = sum(length_us(cells([event]) - window) for event in steps[step] if event["pid"] == device)
            assert expected.clipped_us == outside
            mine = [event for event in steps[step] if event["pid"] == device]
            assert expected.collective_count == sum("nccl" in event["name"] for event in mine)


def check_measures(expected: ExpectedStep, events: list[Trace], window: set[int], is_whole: bool) -> None:
    compute = cells(event for event in events if is_compute(event)) & window
    communication = cells(event for event in events if is_communication(event)) & window
    others = [event for event in events if not is_compute(event) and not is_communication(event)]
    from_or_to_host = [event for event in others if "HtoD" in event["name"] or "DtoH" in event["name"]]
    host, copies = cells(from_or_to_host) & window, cells(others) & window
    idle = {cell for cell in window if cell not in compute and cell not in communication}
    assert expected.step_us == length_us(window)
    assert expected.compute_us == length_us(compute)
    assert expected.idle_us == length_us(idle)
    assert expected.host_copy_us == length_us(idle & host)
    assert expected.device_copy_us == length_us(idle & copies) - expected.host_copy_us
    if is_whole:
        assert expected.communication_us == length_us(communication) > 0
        assert expected.hidden_us == length_us(communication & compute)
        assert expected.exposed_us == length_us(communication - compute)
    else:
        assert not communication
        assert (expected.communication_us, expected.hidden_us, expected.exposed_us) == (None, None, None)


@pytest.mark.parametrize("name", GLOO_TRACES)
def test_cpu_step_literals_on_a_grid(name: str) -> None:
    generated = GLOO_TRACES[name]
    ranges = step_ranges(generated.trace)
    excluded = ("c10d::", "gloo:", "record_param_comms")
    operators = complete_events(generated.trace, "cpu_op")
    computing = cells(event for event in operators if not event["name"].startswith(excluded))
    annotations = complete_events(generated.trace, "user_annotation")
    gloo = [event for event in annotations if event["name"].startswith("gloo:")]
    for step, step_range in ranges.items():
        expected = generated.expected.steps[None, step]
        window = cells([step_range])
        own = [event for event in gloo if span(step_range)[0] <= event["ts"] < span(step_range)[1]]
        compute, communication = computing & window, cells(own) & window
        assert expected.window_us == tuple(time - generated.expected.zero_us for time in span(step_range))
        assert expected.step_us == length_us(window)
        assert expected.compute_us == length_us(compute)
        assert expected.communication_us == length_us(communication)
        assert expected.hidden_us == length_us(communication & compute)
        assert expected.exposed_us == length_us(communication - compute)
        assert expected.idle_us == length_us(window - compute - communication)
        assert expected.clipped_us == sum(length_us(cells([event]) - window) for event in own)
        assert expected.collective_count == len(own) == 5
        assert expected.host_copy_us is None
        assert expected.device_copy_us is None


def phase_of(call: Trace, trace: Trace) -> str:
    """Phase of a launch in a DataParallel trace with named ranges, by time alone."""
    reduces = [e for e in complete_events(trace, "cpu_op") if e["name"] == "BroadcastBackward"]
    if any(contains(event, call) for event in reduces):
        return "gradient_reduce"
    ranges = complete_events(trace, "user_annotation")
    inside = {event["name"].removeprefix("dpscope::") for event in ranges if contains(event, call)}
    for phase in ("host_to_device", "dp_scatter", "dp_replicate", "dp_parallel_apply", "dp_gather", "optimizer"):
        if phase in inside:
            return phase.removeprefix("dp_")
    assert inside & {"forward", "backward"}
    return "loss_backward"


@pytest.mark.parametrize("name", NAMED_DP)
def test_phase_literals_on_a_grid(name: str) -> None:
    generated = DEVICE_TRACES[name]
    calls = launch_calls(generated.trace)
    for step, events in by_step(generated.trace).items():
        found: dict[tuple[int, str], list[Trace]] = {}
        for event in events:
            call = calls[event["args"]["correlation"]]
            found.setdefault((event["pid"], phase_of(call, generated.trace)), []).append(event)
        devices = {device for device, _ in found}
        for device in devices:
            literals = generated.expected.steps[device, step].phases
            assert set(literals) == {phase for on, phase in found if on == device}
            for phase, literal in literals.items():
                check_phase(literal, found[device, phase])


def check_phase(literal: ExpectedPhase, events: list[Trace]) -> None:
    collectives = [event for event in events if "nccl" in event["name"]]
    assert literal.time_us == length_us(cells(events))
    assert literal.copied_bytes == sum(event["args"].get("bytes", 0) for event in events)
    assert literal.collective_count == len(collectives)
    sizes = {"Broadcast": [12582912, 3145728, 38400, 160], "Reduce": [6291456, 9437184]}
    kinds = [kind for kind in sizes if any(f"_{kind}_" in event["name"] for event in collectives)]
    assert literal.collective_bytes == sum(sum(sizes[kind]) for kind in kinds)


@pytest.mark.parametrize("name", NAMED)
def test_range_literals_on_a_grid(name: str) -> None:
    generated = DEVICE_TRACES[name]
    calls = launch_calls(generated.trace)
    annotations = complete_events(generated.trace, "user_annotation")
    named = {f"dpscope::{name}" for name in ("host_to_device", "forward", "backward", "optimizer")}
    ranges = [event for event in annotations if event["name"] in named]
    assert len(ranges) == 12
    for (device, step), expected in generated.expected.steps.items():
        mine = [event for event in by_step(generated.trace)[step] if event["pid"] == device]
        found: dict[str, list[Trace]] = {}
        for event in mine:
            call = calls[event["args"]["correlation"]]
            inside = [r["name"].removeprefix("dpscope::") for r in ranges if contains(r, call)]
            assert len(inside) == 1
            if not is_communication(event):
                found.setdefault(inside[0], []).append(event)
        assert expected.range_us
        for phase, literal in expected.range_us.items():
            assert literal == length_us(cells(found[phase]))
        assert set(found) - set(expected.range_us) <= ({"host_to_device"} if expected.clipped_us else set())


@pytest.mark.parametrize("name", [name for name in ALL_TRACES if not name.startswith("dp")])
def test_the_expected_collectives_are_those_of_the_trace(name: str) -> None:
    generated = ALL_TRACES[name]
    launched = set(launch_calls(generated.trace))
    kernels = [e for e in complete_events(generated.trace, "kernel") if e["args"]["correlation"] in launched]
    annotations = complete_events(generated.trace, "user_annotation")
    running = [event for event in kernels if "nccl" in event["name"]]
    running += [event for event in annotations if event["name"].startswith("gloo:")]
    zero = generated.expected.zero_us
    rows = generated.expected.collectives
    assert bool(rows) == generated.expected.complete
    assert Counter((row.start_us, row.duration_us) for row in rows) == Counter(
        (event["ts"] - zero, event["dur"]) for event in running
    )


@pytest.mark.parametrize("name", JOBS)
def test_transfer_and_wait_literals_across_ranks(name: str) -> None:
    per_rank = [generated.expected.collectives for generated in JOBS[name]]
    assert len({len(rows) for rows in per_rank}) == 1
    assert per_rank[0]
    for matched in zip(*per_rank, strict=True):
        assert len({(row.kind, row.step, row.bytes) for row in matched}) == 1
        if matched[0].kind == "broadcast":
            assert all(row.transfer_us is None and row.wait_us is None for row in matched)
            continue
        for row in matched:
            shortest = min(other.duration_us for other in matched)
            assert row.transfer_us == shortest
            assert row.wait_us == row.duration_us - shortest
            check_rates(row, len(matched))


def check_rates(row: ExpectedCollective, world_size: int) -> None:
    if row.bytes is None:
        assert (row.algbw_gb_per_s, row.busbw_gb_per_s) == (None, None)
        return
    assert row.transfer_us is not None
    algbw = row.bytes / row.transfer_us / 1e3
    size = 2 if row.kind in ("all_gather", "reduce_scatter") else world_size
    assert row.algbw_gb_per_s == pytest.approx(algbw, rel=1e-12)
    factor = BUS_FACTORS[row.kind] * (size - 1) / size
    assert row.busbw_gb_per_s == pytest.approx(algbw * factor, rel=1e-12)
