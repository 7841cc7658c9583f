"""What the tests on GPUs conclude from runs, traces and answers. Without a GPU these functions are
tested on recorded data.
"""

import gzip
import json
import re
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from threading import Event, Thread
from typing import Any

import torch

from dpscope.analysis.costs.formulas import bus_factor
from dpscope.profiling.instruments.step_timer import RunStep, time_block
from dpscope.profiling.machine.environment import states_under_load
from dpscope.profiling.machine.nvml import bare_uuid
from dpscope.profiling.records.calibration import Calibration
from dpscope.profiling.records.run import DdpCounters, DeviceState, RankResult

Analysis = Mapping[str, Any]
TraceEvents = Sequence[Mapping[str, Any]]

MATCHED = ("all_reduce", "all_gather", "reduce_scatter")  # every rank waits for every other
_WARNING = re.compile(r"\b\w+Warning(?=:)|(?<=NCCL )WARN\b")
_WRONG = (
    "trace_incomplete",
    "no_kernels",
    "events_of_no_step",
    "variant_not_kept",
    "counters_disagree",
)


def why_skipped(gpus: int, least_gpus: int, expected_s: float, left_s: float) -> str | None:
    """Why a test is not run now, None if it is."""
    if gpus == 0:
        return "no GPU that torch can use"
    if gpus < least_gpus:
        return f"needs {least_gpus} GPUs, {gpus} here"
    if left_s < expected_s:
        return f"{max(0.0, left_s):.0f} s are left, and it takes about {expected_s:.0f} s"
    return None


def problems(analysis: Analysis) -> list[str]:
    """What is wrong with dpscope, by its own analysis: cells that were not measured, errors, and
    findings that mean so.

    Warnings about the machine and its load (idle devices, spread, the tracer's cost) are no
    failures: a healthy GPU gives them.
    """
    cells = [
        f"{row['cell']}: {row['status']}"
        for row in analysis.get("cells", ())
        if row["status"] != "ok"
    ]
    findings = [
        f"{one['code']}: {one['message']}"
        for one in analysis["findings"]
        if one["severity"] == "error" or one["code"] in _WRONG
    ]
    return [*cells, *findings]


def trace_events(path: Path) -> list[dict[str, Any]]:
    """The events of a trace, as they stand there."""
    events: list[dict[str, Any]] = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    return events


def busy_difference(analysis: Analysis, cell: str, events: TraceEvents) -> float | None:
    """How far the analysis's busy time of a cell's whole steps is from the union of its kernels, as
    a share.

    Whole steps end one after another, the last with the last event of a device: they cover that
    long before it.
    """
    steps = [row for row in _whole_steps(analysis, cell) if row["repeat"] == 0]
    kernels = [one for one in events if one.get("cat") == "kernel"]
    on_device = [one for one in events if one.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")]
    if not steps or not kernels:
        return None
    busy_us = sum(row["compute_us"] + row["exposed_us"] for row in steps)
    end_us = max(float(one["ts"]) + float(one["dur"]) for one in on_device)
    begin_us = end_us - sum(row["step_us"] for row in steps)
    clipped = (
        (max(float(one["ts"]), begin_us), float(one["ts"]) + float(one["dur"])) for one in kernels
    )
    by_hand_us = union_us(one for one in clipped if one[1] > one[0])
    return abs(busy_us / by_hand_us - 1) if by_hand_us else None


def step_difference(analysis: Analysis, cell: str) -> float | None:
    """The largest share by which compute, exposed communication and idle miss a step."""
    steps = _whole_steps(analysis, cell)
    parts = ("compute_us", "exposed_us", "idle_us")
    if not steps or any(row[name] is None for row in steps for name in parts):
        return None
    return max(
        abs(float(sum(row[name] for name in parts)) / float(row["step_us"]) - 1) for row in steps
    )


def _whole_steps(analysis: Analysis, cell: str) -> list[Mapping[str, Any]]:
    return [row for row in analysis["steps"] if row["cell"] == cell and not row["partial_window"]]


def launched_share(events: TraceEvents) -> float | None:
    """The share of kernels whose correlation a call of the host has; None without kernels."""
    calls = {
        one.get("args", {}).get("correlation")
        for one in events
        if one.get("cat") in ("cuda_runtime", "cuda_driver")
    }
    kernels = [one for one in events if one.get("cat") == "kernel"]
    if not kernels:
        return None
    return sum(one.get("args", {}).get("correlation") in calls for one in kernels) / len(kernels)


def union_us(intervals: Iterable[tuple[float, float]]) -> float:
    """The time that intervals cover together."""
    covered, reached = 0.0, float("-inf")
    for start, end in sorted(intervals):
        covered += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return covered


def ddp_problems(
    analysis: Analysis,
    cell: str,
    gradient_bytes: int,
    counters: Sequence[DdpCounters],
    on_device: bool = True,
) -> list[str]:
    """What is wrong with the all-reduces of a DDP cell: their bytes, buckets, sequence numbers,
    matching, device.
    """
    by_step: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {
        (row["repeat"], row["rank"], row["step"]): [] for row in _whole_steps(analysis, cell)
    }
    for row in analysis["collectives"]:
        if row["cell"] == cell and row["kind"] == "all_reduce":
            by_step.get((row["repeat"], row["rank"], row["step"]), []).append(row)
    reduced = [row for rows in by_step.values() for row in rows]
    if not reduced:
        return ["no all-reduce in a whole step"]
    wrong = []
    moved = {sum(row["bytes"] or 0 for row in rows) for rows in by_step.values()}
    if moved != {gradient_bytes}:
        wrong.append(
            f"all-reduces move {sorted(moved)} bytes a step, the gradients have {gradient_bytes}"
        )
    buckets = {tuple(sorted(row["bytes"] for row in rows)) for rows in by_step.values()}
    counted = {tuple(sorted(one.bucket_bytes)) for one in counters}
    if not counters or buckets != counted:
        wrong.append(f"buckets of {sorted(buckets)} bytes, DDP counted {sorted(counted)}")
    if unmatched := sum(row["transfer_us"] is None for row in reduced):
        wrong.append(f"{unmatched} of {len(reduced)} all-reduces are not matched across ranks")
    if on_device and (numberless := sum(row["sequence"] is None for row in reduced)):
        wrong.append(f"{numberless} of {len(reduced)} all-reduces have no sequence number")
    if any((row["device"] is not None) != on_device for row in reduced):
        wrong.append(f"not all all-reduces are {'on a device' if on_device else 'on the host'}")
    return wrong


_LARGE_BYTES = 1 << 20  # of smaller messages the latency, not the link, decides
_TOLERANCE = 1.05


def impossible_rates(analysis: Analysis) -> list[str]:
    """Rates that no machine has: FLOPs above the device's specified peak, a bus bandwidth above the
    link's.

    A switch that reduces (NVLS) sends every byte once, where a ring sends 2 (n-1)/n: the bus
    bandwidth of an all-reduce may be up to 2 (n-1)/(n+1) of the link's.
    """
    found = [
        f"{row['cell']}: an MFU of {row['mfu']:.2f}"
        for row in analysis["cells"]
        if (row["mfu"] or 0.0) >= 1.0
    ]
    links = {
        row["cell"]: row["link_gb_per_s"]
        for row in analysis["cells"]
        if row["link_gb_per_s"] is not None
    }
    rates: dict[tuple[str, str], list[float]] = {}
    most: dict[tuple[str, str], float] = {}
    for row in analysis["collectives"]:
        if row["cell"] not in links or row["busbw_gb_per_s"] is None or row["bytes"] < _LARGE_BYTES:
            continue
        key = row["cell"], row["kind"]
        most[key] = _TOLERANCE * links[row["cell"]] * _in_switch(row["kind"], row["group_size"])
        rates.setdefault(key, []).append(row["busbw_gb_per_s"])
    medians = {key: statistics.median(of_kind) for key, of_kind in rates.items()}
    return found + [
        f"{cell}: {kind} at {rate:.4g} GB/s, over a link of {links[cell]:.4g} GB/s"
        for (cell, kind), rate in medians.items()
        if rate > most[cell, kind]
    ]


def _in_switch(kind: str, ranks: int) -> float:
    return max(1.0, 2 * (ranks - 1) / (ranks + 1)) if kind == "all_reduce" else 1.0


def calibration_problems(calibration: Calibration) -> list[str]:
    """Bus bandwidths above the link's, and collectives at whose size NCCL's own log has no
    choice.
    """
    found = []
    for point in calibration.points:
        link, factor = (
            calibration.links.get(point.devices),
            bus_factor(point.collective, point.devices) or 0.0,
        )
        rate = point.size_bytes * factor / statistics.median(point.times_us) / 1e3
        if link is not None and rate > _TOLERANCE * link.gb_per_s * _in_switch(
            point.collective, point.devices
        ):
            found.append(
                f"{point.collective} of {point.size_bytes} bytes at {rate:.4g} GB/s, over {link.name}"
            )
    for choices in calibration.nccl:
        logged = {(choice.kind, choice.size_bytes) for choice in choices.log.choices}
        timed = {
            (point.collective, point.size_bytes)
            for point in calibration.points
            if point.devices == choices.devices
        }
        found += [
            f"NCCL's log has no {kind} of {size} bytes" for kind, size in sorted(timed - logged)
        ]
    return found


def unmatched(analysis: Analysis) -> dict[str, int]:
    """The collectives of each cell's whole steps that are not matched across the ranks of their
    group, where there are any.
    """
    whole = {
        (row["cell"], row["repeat"], row["rank"], row["step"])
        for row in analysis["steps"]
        if not row["partial_window"]
    }
    found: Counter[str] = Counter()
    for row in analysis["collectives"]:
        in_whole = (row["cell"], row["repeat"], row["rank"], row["step"]) in whole
        between_ranks = row["kind"] in MATCHED and row["group_size"] != 1
        found[row["cell"]] += in_whole and between_ranks and row["transfer_us"] is None
    return dict(+found)


def counted_warnings(analysis: Analysis, logs: Iterable[Path]) -> dict[str, int]:
    """How often each warning was given: by dpscope, by its code, and by Python and NCCL in the logs
    of jobs, by its class.
    """
    found = Counter(one["code"] for one in analysis["findings"] if one["severity"] == "warning")
    for path in logs:
        found.update(_WARNING.findall(path.read_text(errors="replace")))
    return dict(found)


def hidden_shares(analysis: Analysis) -> dict[str, float]:
    """The share of its communication that each cell hides."""
    return {
        row["cell"]: row["hidden_us"] / row["communication_us"]
        for row in analysis["cells"]
        if row["communication_us"] and row["hidden_us"] is not None
    }


def nccl_kernels(events: TraceEvents, kind: str) -> Counter[int]:
    """How many NCCL kernels of a kind (Broadcast, Reduce, AllReduce) each device ran."""
    marks = ("_" + kind + "_", "_" + kind + "(")
    names = [
        one
        for one in events
        if one.get("cat") == "kernel" and "nccl" in str(one.get("name")).lower()
    ]
    return Counter(
        int(one["args"]["device"])
        for one in names
        if any(mark in str(one["name"]) for mark in marks)
    )


def peer_copies(events: TraceEvents) -> dict[tuple[int, int], int]:
    """Bytes copied between each pair of devices, by source and target."""
    copied: Counter[tuple[int, int]] = Counter()
    for one in events:
        args = one.get("args", {})
        if one.get("cat") == "gpu_memcpy" and {"fromDevice", "toDevice"} <= args.keys():
            copied[int(args["fromDevice"]), int(args["toDevice"])] += int(args.get("bytes", 0))
    return dict(copied)


def events_over_wall(
    step: RunStep, steps: int, device: torch.device, synchronise: Callable[[], None]
) -> float:
    """How far the sum of step times is from the wall clock around all steps, as a share."""
    time_block(step, max(2, steps // 5), device, synchronise)
    block, samples = time_block(step, steps, device, synchronise)
    return abs(sum(sample.step_us for sample in samples) / 1e6 / block.duration_s - 1)


def state_during(
    work: Callable[[], None], look: Callable[[], tuple[DeviceState, ...]], lasting_s: float
) -> tuple[DeviceState, ...]:
    """The devices' states while `work`, which waits for its end, runs again and again for so
    long.
    """
    samples: list[tuple[DeviceState, ...]] = []
    over = Event()

    def observe() -> None:
        while not over.is_set():
            seen = look()
            if not samples or not over.is_set():
                samples.append(seen)
            over.wait(0.1)

    observer = Thread(target=observe)
    ends_s = time.monotonic() + lasting_s
    work()
    observer.start()
    while time.monotonic() < ends_s:
        work()
    over.set()
    observer.join()
    return states_under_load(samples)


def last_visible_uuid(uuids: Sequence[str]) -> str:
    """What makes the last of torch's devices the only visible one, whatever CUDA_VISIBLE_DEVICES is
    for the others.
    """
    return f"GPU-{bare_uuid(uuids[-1])}"


def measured_uuids(ranks: Iterable[RankResult]) -> set[str]:
    """UUIDs of the devices that a cell's processes recorded."""
    states = [
        state for rank in ranks for state in (*rank.device_states_before, *rank.device_states_after)
    ]
    return {bare_uuid(state.uuid) for state in states if state.uuid is not None}
