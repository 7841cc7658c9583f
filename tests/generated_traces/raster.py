"""What a right analysis finds in a generated trace, counted on a raster of half microseconds;
nothing here uses dpscope.

Every time of the generator is a multiple of half a microsecond. A set of cells is an integer, one
bit a cell, counted from 2,000 us before the trace's zero. `test_expected` compares these counts
with steps worked out by hand.
"""

from collections.abc import Iterable

from tests.generated_traces.builder import ZERO_US
from tests.generated_traces.model import (
    DP_BROADCAST_BYTES,
    DP_REDUCE_BYTES,
    ExpectedPhase,
    ExpectedStep,
    Trace,
)

DEVICE_CATEGORIES = ("kernel", "gpu_memcpy", "gpu_memset")
FIRST_CELL_US = ZERO_US - 2000
RANGES = ("host_to_device", "forward", "backward", "optimizer")
PHASE_RANGES = (
    "host_to_device",
    "dp_scatter",
    "dp_replicate",
    "dp_parallel_apply",
    "dp_gather",
    "optimizer",
)
Steps = dict[tuple[int | None, int], ExpectedStep]


def complete_events(trace: Trace, *categories: str) -> list[Trace]:
    return [
        event for event in trace["traceEvents"] if event["ph"] == "X" and event["cat"] in categories
    ]


def span(event: Trace) -> tuple[float, float]:
    return event["ts"], event["ts"] + event["dur"]


def cells(*spans: tuple[float, float]) -> int:
    """The cells covered by any of these spans."""
    covered = 0
    for start, end in spans:
        first, last = int(2 * (start - FIRST_CELL_US)), int(2 * (end - FIRST_CELL_US))
        covered |= (1 << last) - (1 << first)
    return covered


def covered_by(events: Iterable[Trace]) -> int:
    return cells(*map(span, events))


def length_us(covered: int) -> float:
    return covered.bit_count() / 2


def step_ranges(trace: Trace) -> dict[int, Trace]:
    ranges = complete_events(trace, "user_annotation")
    return {
        int(e["name"].split("#")[1]): e for e in ranges if e["name"].startswith("ProfilerStep#")
    }


def launch_calls(trace: Trace) -> dict[int, Trace]:
    return {call["args"]["correlation"]: call for call in complete_events(trace, "cuda_runtime")}


def is_communication(event: Trace) -> bool:
    return "nccl" in event["name"] or "PtoP" in event["name"]


def is_compute(event: Trace) -> bool:
    return event["cat"] == "kernel" and "nccl" not in event["name"]


def occupies(event: Trace, device: int) -> bool:
    """Whether an event runs on a device, or copies to it from another one."""
    return device in (event["pid"], event["args"].get("toDevice"))


def by_step(trace: Trace) -> dict[int, list[Trace]]:
    """Device events by the step range in which their launch begins."""
    calls, ranges = launch_calls(trace), step_ranges(trace)
    steps: dict[int, list[Trace]] = {step: [] for step in ranges}
    for event in complete_events(trace, *DEVICE_CATEGORIES):
        call = calls.get(event["args"]["correlation"])
        for step, step_range in ranges.items():
            if call and contains(step_range, call):
                steps[step].append(event)
    return steps


def contains(outer: Trace, call: Trace) -> bool:
    start, end = span(outer)
    return start <= float(call["ts"]) < end


def device_steps(trace: Trace, complete: bool = True) -> Steps:
    """Of traces with devices. A step's window ends with its last event, where the next one begins;
    the first one's begins with its first event. `complete`: whether the communication that the
    operators request has left kernels.
    """
    steps = by_step(trace)
    launched = [event for events in steps.values() for event in events]
    phases, ranges = _places(trace, "phase"), _places(trace, "range")
    begin = first = min(event["ts"] for event in launched)
    table: Steps = {}
    for step, events in steps.items():
        end = max(span(event)[1] for event in events)
        window = cells((begin, end))
        for device in {event["pid"] for event in launched}:
            compute = (
                covered_by(e for e in launched if e["pid"] == device and is_compute(e)) & window
            )
            communication = (
                covered_by(e for e in launched if occupies(e, device) and is_communication(e))
                & window
            )
            copies = [
                e
                for e in launched
                if e["pid"] == device and not is_compute(e) and not is_communication(e)
            ]
            idle = window & ~compute & ~communication
            host_copy = idle & covered_by(
                e for e in copies if "HtoD" in e["name"] or "DtoH" in e["name"]
            )
            own = [event for event in events if occupies(event, device)]
            table[device, step] = ExpectedStep(
                device,
                step,
                window_us=(begin - ZERO_US, end - ZERO_US),
                step_us=length_us(window),
                compute_us=length_us(compute),
                communication_us=length_us(communication) if complete else None,
                hidden_us=length_us(communication & compute) if complete else None,
                exposed_us=length_us(communication & ~compute) if complete else None,
                host_copy_us=length_us(host_copy),
                device_copy_us=length_us(idle & covered_by(copies) & ~host_copy),
                idle_us=length_us(idle),
                clipped_us=sum(length_us(covered_by([event]) & ~window) for event in own),
                partial_window=begin == first,
                collective_count=sum("nccl" in event["name"] for event in own),
                phases={
                    phase: _phase(found, device) for phase, found in _grouped(own, phases).items()
                },
                range_us={
                    name: length_us(covered_by(e for e in found if not is_communication(e)))
                    for name, found in _grouped(own, ranges).items()
                    if not covered_by(found) & ~window
                },
            )
        begin = end
    return table


def _places(trace: Trace, kind: str) -> dict[int, str | None]:
    """By correlation of what is launched there: dpscope's range of it, or DataParallel's phase."""
    ranges = [
        e for e in complete_events(trace, "user_annotation") if e["name"].startswith("dpscope::")
    ]
    reduces = [e for e in complete_events(trace, "cpu_op") if e["name"] == "BroadcastBackward"]
    if kind == "phase" and not any(event["name"] == "dpscope::dp_replicate" for event in ranges):
        return {}
    places: dict[int, str | None] = {}
    for correlation, call in launch_calls(trace).items():
        inside = {
            event["name"].removeprefix("dpscope::") for event in ranges if contains(event, call)
        }
        found: list[str | None]
        if kind == "range":
            found = [name for name in RANGES if name in inside] or [None]
        elif any(contains(event, call) for event in reduces):
            found = ["gradient_reduce"]
        else:
            found = [name.removeprefix("dp_") for name in PHASE_RANGES if name in inside] or [
                "loss_backward"
            ]
        places[correlation] = found[0]
    return places


def _grouped(events: list[Trace], places: dict[int, str | None]) -> dict[str, list[Trace]]:
    groups: dict[str, list[Trace]] = {}
    for event in events:
        if (place := places.get(event["args"]["correlation"])) is not None:
            groups.setdefault(place, []).append(event)
    return groups


def _phase(events: list[Trace], device: int) -> ExpectedPhase:
    collectives = [event["name"] for event in events if "nccl" in event["name"]]
    sizes = {"_Broadcast_": sum(DP_BROADCAST_BYTES), "_Reduce_": sum(DP_REDUCE_BYTES)}
    return ExpectedPhase(
        length_us(covered_by(events)),
        copied_bytes=sum(
            event["args"].get("bytes", 0) for event in events if event["pid"] == device
        ),
        collective_count=len(collectives),
        collective_bytes=sum(
            size for kind, size in sizes.items() if any(kind in name for name in collectives)
        ),
    )


def cpu_steps(trace: Trace) -> Steps:
    """Of traces without devices, on gloo: windows are the ranges of the steps, the last of which is
    not whole.
    """
    operators = complete_events(trace, "cpu_op")
    computing = covered_by(
        e for e in operators if not e["name"].startswith(("c10d::", "record_param_comms"))
    )
    gloo = [e for e in complete_events(trace, "user_annotation") if e["name"].startswith("gloo:")]
    ranges = step_ranges(trace)
    table: Steps = {}
    for step, step_range in ranges.items():
        window = covered_by([step_range])
        own = [event for event in gloo if contains(step_range, event)]
        compute, communication = computing & window, covered_by(own) & window
        table[None, step] = ExpectedStep(
            None,
            step,
            window_us=(step_range["ts"] - ZERO_US, span(step_range)[1] - ZERO_US),
            step_us=length_us(window),
            compute_us=length_us(compute),
            communication_us=length_us(communication),
            hidden_us=length_us(communication & compute),
            exposed_us=length_us(communication & ~compute),
            host_copy_us=None,
            device_copy_us=None,
            idle_us=length_us(window & ~compute & ~communication),
            clipped_us=sum(length_us(covered_by([event]) & ~window) for event in own),
            partial_window=step == max(ranges),
            collective_count=len(own),
        )
    return table
