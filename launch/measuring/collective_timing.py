"""Times collectives in one process of a calibration job: alone, two at once, and while
computing.
"""

import math
import os
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import msgspec
import torch
from torch import distributed

from dpscope.launch.jobs.process_group import (
    COLLECTIVE_S,
    devices_of,
    join_process_group,
    nccl_engine,
    wait_limit_s,
)
from dpscope.launch.jobs.worker_process import TorchrunPlace
from dpscope.launch.measuring.calibration_settings import contended_bytes
from dpscope.profiling.machine.host_memory import free_host_bytes, keep_freed_memory
from dpscope.profiling.records.calibration import (
    CalibrationPoint,
    CalibrationSettings,
    Collective,
    Contention,
    NotTimed,
    TimedCollectives,
)
from dpscope.profiling.records.finding import counted

ROUNDS = 4
_PROBE_BYTES = 64  # per device, for the call that shows whether a backend has a collective
_WHOLE = ("all_reduce", "broadcast", "reduce")  # one buffer, no shares
# GPU sleep per call, under a millisecond, in which the host enqueues ahead
_SLEEP_CYCLES = 1_000_000
_LONGER_SLEEP, _MOST_SLEEPS = 4, 5  # times as long, where the host needed more; attempts
_HOST_TOO_SLOW = (
    f"the host took longer to queue the calls than the GPU slept, even {_LONGER_SLEEP ** (_MOST_SLEEPS - 1)} times the usual "
    "time: its delays would count as the collective's; stop other programs"
)
# of the square matrices in a piece of computation: at most 0.1 ms at 20 TFLOP/s
_CPU_SIDE, _GPU_SIDE = 128, 1024
_PIECES = 20  # at least, to time one
_CPU_SHARE, _GPU_SHARE = 0.8, 0.9  # of free memory that buffers may take


@dataclass(frozen=True)
class Subgroup:
    """The first ranks of a job, or of each of its first nodes, with this rank's device and the
    memory for buffers.
    """

    group: distributed.ProcessGroup
    nodes: int
    devices: int  # on all these nodes together
    device: torch.device
    free_bytes: int  # minimum over the ranks

    @property
    def several_nodes(self) -> int | None:
        """Its nodes as they are stored: None for one."""
        return self.nodes if self.nodes > 1 else None


def measure(
    settings: CalibrationSettings,
    place: TorchrunPlace,
    keep: Callable[[TimedCollectives], None] = lambda _: None,
) -> TimedCollectives:
    """Time everything in `settings` in this process of a job; rank 0's result has every point.
    `nccl_log` times nothing.

    `keep` gets the collectives before contention is timed, so that a failure then does not lose
    them.
    """
    device = _join(settings, place)
    subgroups = _subgroups(settings, device, place.local_world_size)
    if settings.nccl_log:
        for subgroup in _in_turn(subgroups):
            call_each_size(settings, subgroup, place.report)
        return TimedCollectives(backend=distributed.get_backend())
    points: list[CalibrationPoint] = []
    left_out: list[NotTimed] = []
    for subgroup in _in_turn(subgroups):
        for collective in settings.collectives:
            measured, missing = time_collective(collective, settings, subgroup, place.report)
            points += measured
            left_out += missing
    # Ranks may share a GPU.
    gpus = min(settings.job.per_node, torch.cuda.device_count()) if device.type == "cuda" else 0
    properties = [torch.cuda.get_device_properties(index) for index in range(gpus)]
    result = TimedCollectives(
        backend=distributed.get_backend(),
        device_names=tuple(gpu.name for gpu in properties) * place.nodes
        or ("cpu",) * place.world_size,
        device_uuids=tuple(str(getattr(gpu, "uuid", "")) for gpu in properties),
        points=tuple(points),
        left_out=tuple(left_out),
        nccl_engine=nccl_engine(device),
    )
    keep(result)
    reduced = {(point.devices, point.nodes) for point in points if point.collective == "all_reduce"}
    contention: list[Contention] = []
    for subgroup in _in_turn(subgroups):
        if (subgroup.devices, subgroup.several_nodes) in reduced:
            timed, missing = time_contention(settings, subgroup, place.report)
            contention += timed
            left_out += missing
    return msgspec.structs.replace(result, contention=tuple(contention), left_out=tuple(left_out))


def _join(settings: CalibrationSettings, place: TorchrunPlace) -> torch.device:
    """Join the job's process group; returns this process's device.

    The limit of its collectives is almost the job's: ranks outside of a subgroup wait in a barrier
    until it is timed.
    """
    (device,) = devices_of(settings.device, place)
    if device.type == "cpu":
        torch.set_num_threads(1)
        keep_freed_memory()
    join_process_group(device, wait_limit_s(device, settings.timeout_s))
    return device


def _subgroups(
    settings: CalibrationSettings, device: torch.device, on_each_node: int
) -> list[Subgroup | None]:
    """The subgroup of every device count, None for those without this rank; all ranks create them
    in the same order.

    The job has `on_each_node` consecutive ranks on each node.
    """
    timeout = timedelta(seconds=wait_limit_s(device, settings.timeout_s, COLLECTIVE_S))
    if device.type == "cuda":
        free = torch.cuda.mem_get_info(device)[0] * _GPU_SHARE
    else:
        free = free_host_bytes() * _CPU_SHARE / distributed.get_world_size()
    least = torch.tensor([int(free)], dtype=torch.int64, device=device)
    distributed.all_reduce(least, op=distributed.ReduceOp.MIN)
    subgroups: list[Subgroup | None] = []
    for layout in settings.groups:
        ranks = [
            node * on_each_node + local
            for node in range(layout.nodes)
            for local in range(layout.per_node)
        ]
        group = distributed.new_group(ranks, timeout=timeout)
        if isinstance(group, distributed.ProcessGroup) and distributed.get_rank() in ranks:
            subgroups.append(Subgroup(group, layout.nodes, layout.devices, device, int(least)))
        else:
            subgroups.append(None)
    return subgroups


def _in_turn(subgroups: Sequence[Subgroup | None]) -> Iterable[Subgroup]:
    """This rank's subgroups; before each is left, all ranks of the job wait for its own."""
    for subgroup in subgroups:
        if subgroup is not None:
            yield subgroup
        distributed.barrier()


def time_collective(
    collective: Collective,
    settings: CalibrationSettings,
    subgroup: Subgroup,
    report: Callable[[str], None],
) -> tuple[list[CalibrationPoint], list[NotTimed]]:
    """Time every size of one collective on one subgroup; all its ranks must call this and get the
    same result.
    """
    refusal = _refusal(collective, settings, subgroup)
    if refusal is not None:
        return [], [NotTimed(collective, subgroup.devices, size_bytes=None, reason=refusal)]
    fitting, left_out = sizes_that_fit(collective, settings, subgroup.devices, subgroup.free_bytes)
    times_us: dict[int, list[float]] = {size: [] for size in fitting}
    shortest_us: dict[int, list[float]] = {size: [] for size in fitting}
    timed = _time_cuda if subgroup.device.type == "cuda" else _time_cpu
    for part, iterations in enumerate(shares_of_iterations(settings.iterations)):
        for size in list(times_us):
            report(f"{collective} on {counted(subgroup.devices, 'device')} at {size} B")
            call = make_call(collective, size, settings.dtype, subgroup)
            warm_up = settings.warmup_iterations if part == 0 else 1
            local_us = timed(call, warm_up + iterations, subgroup)[warm_up:]
            if not local_us:
                del times_us[size]
                left_out.append(NotTimed(collective, subgroup.devices, size, _HOST_TOO_SLOW))
                continue
            times_us[size] += slowest_us(local_us, subgroup)
            shortest_us[size] += _of_ranks(local_us, subgroup, distributed.ReduceOp.MIN)
    item = getattr(torch, settings.dtype).itemsize
    shares = 1 if collective in _WHOLE else subgroup.devices
    points = []
    for size in times_us:
        count = size // item // shares
        point = CalibrationPoint(
            collective=collective,
            devices=subgroup.devices,
            size_bytes=count * shares * item,
            count=count,
            dtype=settings.dtype,
            times_us=tuple(times_us[size]),
            shortest_us=tuple(shortest_us[size]),
            nodes=subgroup.several_nodes,
        )
        points.append(point)
    return points, left_out


def call_each_size(
    settings: CalibrationSettings, subgroup: Subgroup, report: Callable[[str], None]
) -> None:
    """Call each collective once with each size, untimed; all ranks of the subgroup must call
    this.
    """
    for collective in settings.collectives:
        if _refusal(collective, settings, subgroup) is not None:
            continue
        for size in sizes_that_fit(collective, settings, subgroup.devices, subgroup.free_bytes)[0]:
            report(f"{collective} on {subgroup.devices} devices at {size} B")
            make_call(collective, size, settings.dtype, subgroup)()
    if subgroup.device.type == "cuda":
        torch.cuda.synchronize(subgroup.device)


def shares_of_iterations(iterations: int) -> list[int]:
    """The iterations in up to ROUNDS shares. Each share goes through all sizes, so that a
    disturbance of a second affects a part of several sizes and not all of one.
    """
    rounds = min(ROUNDS, iterations)
    return [len(range(start, iterations, rounds)) for start in range(rounds)]


def _refusal(
    collective: Collective, settings: CalibrationSettings, subgroup: Subgroup
) -> str | None:
    """Why the backend does not support this collective, the same on every rank; None if it does."""
    try:
        make_call(collective, _PROBE_BYTES * subgroup.devices, settings.dtype, subgroup)()
    except (RuntimeError, NotImplementedError) as error:
        text = str(error)
        if "support" not in text.lower() and "implement" not in text.lower():
            raise
        backend = distributed.get_backend(subgroup.group)
        return f"{backend} does not support it for {settings.dtype}: {text.splitlines()[0]}"
    return None


def sizes_that_fit(
    collective: Collective, settings: CalibrationSettings, devices: int, free_bytes: int
) -> tuple[list[int], list[NotTimed]]:
    """The sizes whose buffers fit into each rank's free memory, and those that do not."""
    copies = 2 if settings.device == "cpu" else 1  # gloo makes a copy of the buffer
    shares = 1 / devices if collective in ("all_gather", "reduce_scatter") else 0.0
    needed = {size: round(size * (copies + shares)) for size in settings.sizes}
    reason = f"needs {{:.3g}} GB on every rank, {free_bytes / 1e9:.3g} GB are free there"
    left_out = [
        NotTimed(collective, devices, size, reason.format(size_needed / 1e9))
        for size, size_needed in needed.items()
        if size_needed > free_bytes
    ]
    return [size for size in settings.sizes if needed[size] <= free_bytes], left_out


def make_call(
    collective: Collective, size_bytes: int, dtype: str, subgroup: Subgroup
) -> Callable[[], object]:
    """A call of the collective on new buffers of at most this size; rank 0 is the root. In place
    where torch's call is.

    all_gather and reduce_scatter have shares of equal length: the size is their total.
    """
    kind = getattr(torch, dtype)
    share = size_bytes // kind.itemsize // subgroup.devices
    group = subgroup.group

    def filled(elements: int) -> torch.Tensor:
        # Written, so that its pages exist; zeros, so that no sum overflows.
        return torch.empty(elements, dtype=kind, device=subgroup.device).fill_(0)

    if collective in _WHOLE:
        whole = filled(size_bytes // kind.itemsize)
        calls: dict[str, Callable[[], object]] = {
            "all_reduce": lambda: distributed.all_reduce(whole, group=group),
            "broadcast": lambda: distributed.broadcast(whole, 0, group=group),
            "reduce": lambda: distributed.reduce(whole, 0, group=group),
        }
    else:
        part = filled(share)
        together = filled(share * subgroup.devices)
        calls = {
            "reduce_scatter": lambda: distributed.reduce_scatter_tensor(
                part, together, group=group
            ),
            "all_gather": lambda: distributed.all_gather_into_tensor(together, part, group=group),
        }
    return calls[collective]


def _time_cpu(call: Callable[[], object], runs: int, subgroup: Subgroup) -> list[float]:
    times_us = []
    for _ in range(runs):
        distributed.barrier(group=subgroup.group)
        began = time.perf_counter_ns()
        call()
        times_us.append(_since(began))
    return times_us


def _time_cuda(call: Callable[[], object], runs: int, subgroup: Subgroup) -> list[float]:
    """Time by device events around the call, after a barrier on the device.

    The barrier is an all-reduce of one element on the stream. `distributed.barrier` would make the
    host wait, and the device would be idle until the host has launched the call: that launch would
    count as transfer. For the same reason the device sleeps first, while the host enqueues ahead.
    If any rank's host does not get ahead, all repeat with a longer sleep; without times if none was
    long enough.
    """
    token = torch.zeros(1, device=subgroup.device)
    for attempt in range(_MOST_SLEEPS):
        distributed.barrier(group=subgroup.group)
        torch.cuda.synchronize(subgroup.device)
        slept = _sleep(runs * _LONGER_SLEEP**attempt)
        pairs = []
        for _ in range(runs):
            before = _event()
            after = _event()
            distributed.all_reduce(token, group=subgroup.group)
            before.record()
            call()
            after.record()
            pairs.append((before, after))
        awake = _is_over(slept)
        torch.cuda.synchronize(subgroup.device)
        if not on_any_rank(awake, subgroup):
            return [before.elapsed_time(after) * 1000 for before, after in pairs]
    return []


def _sleep(calls: int) -> torch.cuda.Event:
    """Let the GPU sleep while the host enqueues so many calls; returns the event of its end.

    If that has come to pass when the host is done, the queue may have run dry, and the times hold
    the host's delays.
    """
    torch.cuda._sleep(_SLEEP_CYCLES * calls)  # type: ignore[no-untyped-call]
    slept = _event()
    slept.record()
    return slept


def slowest_us(times_us: list[float], subgroup: Subgroup) -> list[float]:
    """Each iteration's time on its slowest rank."""
    return _of_ranks(times_us, subgroup, distributed.ReduceOp.MAX)


def _of_ranks(times_us: list[float], subgroup: Subgroup, kind: Any) -> list[float]:
    """Each iteration's times on all ranks, reduced; all ranks must call this."""
    times = torch.tensor(times_us, dtype=torch.float64, device=subgroup.device)
    distributed.all_reduce(times, op=kind, group=subgroup.group)
    reduced: list[float] = times.tolist()
    return reduced


def _is_over(event: torch.cuda.Event) -> bool:
    return bool(event.query())  # type: ignore[no-untyped-call]


def on_any_rank(happened: bool, subgroup: Subgroup) -> bool:
    """Whether it happened on at least one rank; all ranks must call this."""
    return slowest_us([float(happened)], subgroup) != [0.0]


_Sample = tuple[float, float, float, float, float]
_SAMPLED = (
    "alone_us",
    "two_in_flight_us",
    "beside_compute_us",
    "compute_alone_us",
    "compute_beside_us",
)
"""One iteration on one rank, by its fields in `Contention`; computation by the piece."""


class _Work:
    """Two buffers to reduce and a matrix product to compute, on one rank.

    `sleeps` counts how often a GPU's sleep had to become longer, `ran_dry` is set where it woke
    before the host was done.
    """

    sleeps = 0
    ran_dry = False

    def __init__(self, size_bytes: int, dtype: str, subgroup: Subgroup) -> None:
        kind = getattr(torch, dtype)
        side = _GPU_SIDE if subgroup.device.type == "cuda" else _CPU_SIDE
        self.group = subgroup.group
        self.device = subgroup.device
        self.buffers = [
            torch.zeros(size_bytes // kind.itemsize, dtype=kind, device=self.device)
            for _ in range(2)
        ]
        self._matrix = torch.ones(side, side, device=self.device)
        self._product = torch.empty_like(self._matrix)

    def begin(self, index: int) -> distributed.Work:
        """Start reducing one buffer."""
        begun = distributed.all_reduce(self.buffers[index], group=self.group, async_op=True)
        assert begun is not None  # with async_op
        return begun

    def reduce(self, count: int) -> None:
        """Reduce so many buffers, started at once, to their end."""
        for work in [self.begin(index) for index in range(count)]:
            work.wait()

    def compute(self, pieces: int = 1) -> None:
        for _ in range(pieces):
            torch.mm(self._matrix, self._matrix, out=self._product)


def time_contention(
    settings: CalibrationSettings, subgroup: Subgroup, report: Callable[[str], None]
) -> tuple[list[Contention], list[NotTimed]]:
    """Time two all-reduces at once, and one during computation; all ranks must call this and get
    the same result.

    Computation uses the threads of a training process (OMP_NUM_THREADS).
    """
    size = contended_bytes(settings.sizes)
    report(
        f"two all_reduces at once, one during computation, on {counted(subgroup.devices, 'device')} at {size} B"
    )
    work = _Work(size, settings.dtype, subgroup)
    threads = torch.get_num_threads()
    torch.set_num_threads(max(1, int(os.environ.get("OMP_NUM_THREADS", "1"))))
    samples = [
        _sample(work, subgroup) for _ in range(settings.warmup_iterations + settings.iterations)
    ]
    torch.set_num_threads(threads)
    if None in samples:
        return [], [NotTimed("all_reduce", subgroup.devices, size, f"contention: {_HOST_TOO_SLOW}")]
    times_us = zip(*filter(None, samples[settings.warmup_iterations :]), strict=True)
    contention = Contention(
        collective="all_reduce",
        devices=subgroup.devices,
        size_bytes=size,
        nodes=subgroup.several_nodes,
        **{
            name: tuple(slowest_us([*sampled_us], subgroup))
            for name, sampled_us in zip(_SAMPLED, times_us, strict=True)
        },
    )
    return [contention], []


def _sample(work: _Work, subgroup: Subgroup) -> _Sample | None:
    """One iteration, again after longer sleeps where a queue ran dry; None if none was long enough,
    then and ever after.
    """
    if subgroup.device.type == "cpu":
        return _once_cpu(work)
    while work.sleeps < _MOST_SLEEPS:
        work.ran_dry = False
        sample = _once_cuda(work)
        if not on_any_rank(work.ran_dry, subgroup):
            return sample
        work.sleeps += 1
    return None


def _once_cpu(work: _Work) -> _Sample:
    """On the CPU, the collective's progress is queried after every piece of computation."""

    def reduced_us(count: int) -> float:
        began = _begin_together(work)
        work.reduce(count)
        return _since(began)

    alone_us = reduced_us(1)
    two_us = reduced_us(2)
    pieces = 0
    began = _begin_together(work)
    while pieces < _PIECES or _since(began) < alone_us:
        work.compute()
        pieces += 1
    piece_us = _since(began) / pieces
    pieces = 0
    began = _begin_together(work)
    reducing = work.begin(0)
    while not reducing.is_completed():
        work.compute()
        pieces += 1
    beside_us = _since(began)
    reducing.wait()
    return alone_us, two_us, beside_us, piece_us, beside_us / max(1, pieces)


def _begin_together(work: _Work) -> int:
    distributed.barrier(group=work.group)
    return time.perf_counter_ns()


def _since(began_ns: int) -> float:
    return (time.perf_counter_ns() - began_ns) / 1e3


def _once_cuda(work: _Work) -> _Sample:
    """Time by device events, after a small all-reduce that synchronises the devices while the host
    enqueues ahead.
    """

    def timed(run: Callable[[int], object], count: int) -> float:
        (slept, before) = _begin(work)
        after = _event()
        run(count)
        after.record()
        work.ran_dry |= _is_over(slept)
        torch.cuda.synchronize(work.device)
        return float(before.elapsed_time(after)) * 1e3

    alone_us = timed(work.reduce, 1)
    two_us = timed(work.reduce, 2)
    piece_us = timed(work.compute, _PIECES) / _PIECES
    # computing lasts longer than the collective
    pieces = max(_PIECES, math.ceil(2 * alone_us / piece_us))
    aside = torch.cuda.Stream(work.device)  # type: ignore[no-untyped-call]
    (slept, before) = _begin(work)
    reduced = _event()
    computed = _event()
    reducing = work.begin(0)
    work.compute(pieces)
    computed.record()
    with torch.cuda.stream(aside):
        reducing.wait()
        reduced.record(aside)
    work.ran_dry |= _is_over(slept)
    torch.cuda.synchronize(work.device)
    beside_us, whole_us = (float(before.elapsed_time(event)) * 1e3 for event in (reduced, computed))
    # pieces that ran during the collective
    overlapped = pieces - max(0.0, whole_us - beside_us) / piece_us
    # A collective that ends before one piece does gives no information.
    piece_beside_us = min(beside_us, whole_us) / overlapped if overlapped >= 1 else piece_us
    return alone_us, two_us, beside_us, piece_us, piece_beside_us


def _begin(work: _Work) -> tuple[torch.cuda.Event, torch.cuda.Event]:
    """The events at which a sleep ends and, once all devices have reached it, timing starts."""
    slept = _sleep(2 * _LONGER_SLEEP**work.sleeps)
    before = _event()
    distributed.all_reduce(torch.zeros(1, device=work.device), group=work.group)
    before.record()
    return slept, before


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
