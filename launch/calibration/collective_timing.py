"""Times collectives in one process of a calibration job: barrier, call, slowest rank, iteration by iteration."""

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import distributed

from dpscope.profiling.records.calibration import CalibrationPoint, CalibrationSettings, Collective, NotTimed
from dpscope.profiling.records.finding import counted

ROUNDS = 4
_PROBE_BYTES = 64  # of each device, to ask whether a backend has a collective
_WHOLE = ("all_reduce", "broadcast", "reduce")  # one buffer, no shares
_SLEEP_CYCLES = 1_000_000  # of GPU time per iteration, in which the host enqueues ahead: under a millisecond


@dataclass(frozen=True)
class Subgroup:
    """The first ranks of a job, or of each of its first nodes, and what each of them has: its device and share of free memory."""

    group: distributed.ProcessGroup
    nodes: int
    devices: int  # over all of these nodes
    device: torch.device
    free_bytes: int  # the least of any rank's


def time_collective(
    collective: Collective, settings: CalibrationSettings, subgroup: Subgroup, report: Callable[[str], None]
) -> tuple[list[CalibrationPoint], list[NotTimed]]:
    """Every size of one collective on one subgroup; called by all its ranks, which all get the same answer."""
    refusal = _refusal(collective, settings, subgroup)
    if refusal is not None:
        return [], [NotTimed(collective=collective, devices=subgroup.devices, size_bytes=None, reason=refusal)]
    fitting, left_out = sizes_that_fit(collective, settings, subgroup.devices, subgroup.free_bytes)
    times_us: dict[int, list[float]] = {size: [] for size in fitting}
    shortest_us: dict[int, list[float]] = {size: [] for size in fitting}
    for part, iterations in enumerate(shares_of_iterations(settings.iterations)):
        for size in fitting:
            report(f"{collective} on {counted(subgroup.devices, 'device')} at {size} B")
            call = make_call(collective, size, settings.dtype, subgroup)
            warm_up = settings.warmup_iterations if part == 0 else 1
            own_us = _time(call, warm_up, iterations, subgroup)
            times_us[size] += slowest_us(own_us, subgroup)
            shortest_us[size] += [-one for one in slowest_us([-own for own in own_us], subgroup)]
    points = [_point(collective, size, settings.dtype, subgroup, times_us[size], shortest_us[size]) for size in fitting]
    return points, left_out


def call_each_size(settings: CalibrationSettings, subgroup: Subgroup, report: Callable[[str], None]) -> None:
    """One call of each collective and size, in which nothing is timed; called by all ranks of the subgroup."""
    for collective in settings.collectives:
        if _refusal(collective, settings, subgroup) is not None:
            continue
        for size in sizes_that_fit(collective, settings, subgroup.devices, subgroup.free_bytes)[0]:
            report(f"{collective} on {subgroup.devices} devices at {size} B")
            make_call(collective, size, settings.dtype, subgroup)()
    if subgroup.device.type == "cuda":
        torch.cuda.synchronize(subgroup.device)


def shares_of_iterations(iterations: int) -> list[int]:
    """The iterations in up to ROUNDS shares: all sizes are gone through with each, one after another.

    So a disturbance that lasts a second spoils a share of several sizes and not all of one.
    """
    rounds = min(ROUNDS, iterations)
    return [len(range(start, iterations, rounds)) for start in range(rounds)]


def _point(
    collective: Collective,
    size_bytes: int,
    dtype: str,
    subgroup: Subgroup,
    times_us: list[float],
    shortest_us: list[float],
) -> CalibrationPoint:
    item, devices = getattr(torch, dtype).itemsize, subgroup.devices
    share = size_bytes // item // devices
    whole = size_bytes // item if collective in _WHOLE else share * devices
    return CalibrationPoint(
        collective=collective,
        devices=devices,
        size_bytes=whole * item,
        count=whole if collective in _WHOLE else share,
        dtype=dtype,
        times_us=tuple(times_us),
        shortest_us=tuple(shortest_us),
        nodes=subgroup.nodes if subgroup.nodes > 1 else None,
    )


def _refusal(collective: Collective, settings: CalibrationSettings, subgroup: Subgroup) -> str | None:
    """Why the backend does not offer this collective, None where it does. It refuses alike on every rank."""
    try:
        make_call(collective, _PROBE_BYTES * subgroup.devices, settings.dtype, subgroup)()
    except (RuntimeError, NotImplementedError) as error:
        text = str(error)
        if "support" not in text.lower() and "implement" not in text.lower():
            raise
        backend = distributed.get_backend(subgroup.group)
        return f"{backend} does not offer it for {settings.dtype}: {text.splitlines()[0]}"
    return None


def sizes_that_fit(
    collective: Collective, settings: CalibrationSettings, devices: int, free_bytes: int
) -> tuple[list[int], list[NotTimed]]:
    """The sizes whose buffers fit into each rank's free memory, and those that do not."""
    # gloo works in a copy on the host as large as the buffer itself.
    copies = 2 if settings.device == "cpu" else 1
    shares = 1 / devices if collective in ("all_gather", "reduce_scatter") else 0.0
    needed = {size: round(size * (copies + shares)) for size in settings.sizes}
    left_out = [
        NotTimed(
            collective=collective,
            devices=devices,
            size_bytes=size,
            reason=f"needs {needed[size] / 1e9:.3g} GB on every rank, {free_bytes / 1e9:.3g} GB are free there",
        )
        for size in settings.sizes
        if needed[size] > free_bytes
    ]
    return [size for size in settings.sizes if needed[size] <= free_bytes], left_out


def make_call(collective: Collective, size_bytes: int, dtype: str, subgroup: Subgroup) -> Callable[[], object]:
    """The call on buffers of its own of at most this size; rank 0 is the root. In place where torch is, as for gradients.

    all_gather and reduce_scatter have shares of equal length: the size is that of all of them together.
    """
    kind = getattr(torch, dtype)
    share = size_bytes // kind.itemsize // subgroup.devices
    group = subgroup.group

    def filled(elements: int) -> torch.Tensor:
        # Written, so that its pages exist; zeros, so that no sum ever overflows.
        return torch.empty(elements, dtype=kind, device=subgroup.device).fill_(0)

    if collective in _WHOLE:
        whole = filled(size_bytes // kind.itemsize)
        calls: dict[str, Callable[[], object]] = {
            "all_reduce": lambda: distributed.all_reduce(whole, group=group),
            "broadcast": lambda: distributed.broadcast(whole, 0, group=group),
            "reduce": lambda: distributed.reduce(whole, 0, group=group),
        }
    else:
        part, together = filled(share), filled(share * subgroup.devices)
        calls = {
            "reduce_scatter": lambda: distributed.reduce_scatter_tensor(part, together, group=group),
            "all_gather": lambda: distributed.all_gather_into_tensor(together, part, group=group),
        }
    return calls[collective]


def _time(call: Callable[[], object], warm_up: int, iterations: int, subgroup: Subgroup) -> list[float]:
    """Microseconds of every iteration on this rank, the warm-up left away."""
    timed = _time_cuda if subgroup.device.type == "cuda" else _time_cpu
    return timed(call, warm_up + iterations, subgroup)[warm_up:]


def _time_cpu(call: Callable[[], object], runs: int, subgroup: Subgroup) -> list[float]:
    times_us = []
    for _ in range(runs):
        distributed.barrier(group=subgroup.group)
        began = time.perf_counter_ns()
        call()
        times_us.append((time.perf_counter_ns() - began) / 1e3)
    return times_us


def _time_cuda(call: Callable[[], object], runs: int, subgroup: Subgroup) -> list[float]:
    """By device events around the call, after a barrier on the device.

    The barrier is an all-reduce of one element on the stream and not `distributed.barrier`, which makes the host wait: the
    device would then stand idle until the host has launched the call, and that launch would be counted as transfer. For the
    same reason the device sleeps first, while the host enqueues ahead.
    """
    token = torch.zeros(1, device=subgroup.device)
    pairs = []
    distributed.barrier(group=subgroup.group)
    torch.cuda.synchronize(subgroup.device)
    torch.cuda._sleep(_SLEEP_CYCLES * runs)  # type: ignore[no-untyped-call]
    for _ in range(runs):
        before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        distributed.all_reduce(token, group=subgroup.group)
        before.record()
        call()
        after.record()
        pairs.append((before, after))
    torch.cuda.synchronize(subgroup.device)
    return [before.elapsed_time(after) * 1000 for before, after in pairs]


def slowest_us(times_us: list[float], subgroup: Subgroup) -> list[float]:
    """Per iteration the time of its slowest rank; reduced only now, after all timing."""
    times = torch.tensor(times_us, dtype=torch.float64, device=subgroup.device)
    distributed.all_reduce(times, op=distributed.ReduceOp.MAX, group=subgroup.group)
    slowest: list[float] = times.tolist()
    return slowest
