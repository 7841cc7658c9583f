"""What a collective and computing do to each other: two all-reduces in flight at once, and one beside computing."""

import math
import os
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import distributed

from dpscope.launch.calibration.collective_timing import Subgroup, slowest_us
from dpscope.launch.calibration.settings import contended_bytes
from dpscope.profiling.records.calibration import CalibrationSettings, Contention
from dpscope.profiling.records.finding import counted

_CPU_SIDE, _GPU_SIDE = 128, 1024  # of the square matrices whose product is a piece: 0.1 ms at 20 TFLOP/s, and less
_PIECES = 20  # at least, to time one
_SLEEP_CYCLES = 2_000_000  # of GPU time, in which the host enqueues ahead


@dataclass(frozen=True)
class _Sample:
    """One iteration on one rank, microseconds; `pieces` are pieces of computing."""

    alone_us: float
    two_us: float
    beside_us: float
    piece_us: float
    piece_beside_us: float


class _Work:
    """Two buffers to reduce and a piece to compute, on one rank."""

    def __init__(self, size_bytes: int, dtype: str, subgroup: Subgroup) -> None:
        kind = getattr(torch, dtype)
        cuda = subgroup.device.type == "cuda"
        side = _GPU_SIDE if cuda else _CPU_SIDE
        self.group, self.device = subgroup.group, subgroup.device
        self.buffers = [torch.zeros(size_bytes // kind.itemsize, dtype=kind, device=self.device) for _ in range(2)]
        self._matrix = torch.ones(side, side, device=self.device)
        self._product = torch.empty_like(self._matrix)

    def begin(self, index: int) -> distributed.Work:
        """Start reducing one buffer."""
        begun = distributed.all_reduce(self.buffers[index], group=self.group, async_op=True)
        assert begun is not None  # with async_op
        return begun

    def compute(self, pieces: int = 1) -> None:
        """So many pieces."""
        for _ in range(pieces):
            torch.mm(self._matrix, self._matrix, out=self._product)


def time_contention(settings: CalibrationSettings, subgroup: Subgroup, report: Callable[[str], None]) -> Contention:
    """Every iteration of one size; called by all ranks of the subgroup, which all get the same answer.

    Computing uses the threads that a process of a training has (OMP_NUM_THREADS).
    """
    size = contended_bytes(settings.sizes)
    report(f"two all_reduces at once, and one beside computing, on {counted(subgroup.devices, 'device')} at {size} B")
    work = _Work(size, settings.dtype, subgroup)
    before = torch.get_num_threads()
    torch.set_num_threads(max(1, int(os.environ.get("OMP_NUM_THREADS", "1"))))
    once = _once_cuda if subgroup.device.type == "cuda" else _once_cpu
    samples = [once(work) for _ in range(settings.warmup_iterations + settings.iterations)][
        settings.warmup_iterations :
    ]
    torch.set_num_threads(before)

    def slowest(name: str) -> tuple[float, ...]:
        return tuple(slowest_us([getattr(sample, name) for sample in samples], subgroup))

    return Contention(
        collective="all_reduce",
        devices=subgroup.devices,
        size_bytes=size,
        alone_us=slowest("alone_us"),
        two_in_flight_us=slowest("two_us"),
        beside_compute_us=slowest("beside_us"),
        compute_alone_us=slowest("piece_us"),
        compute_beside_us=slowest("piece_beside_us"),
        nodes=subgroup.nodes if subgroup.nodes > 1 else None,
    )


def _once_cpu(work: _Work) -> _Sample:
    """On the CPU: how far a collective beside computing has come is asked after every piece."""
    alone_us = _until_done(work, 1)
    two_us = _until_done(work, 2)
    distributed.barrier(group=work.group)
    pieces, began = 0, time.perf_counter_ns()
    while pieces < _PIECES or _since(began) < alone_us:
        work.compute()
        pieces += 1
    piece_us = _since(began) / pieces
    distributed.barrier(group=work.group)
    pieces, began = 0, time.perf_counter_ns()
    reducing = work.begin(0)
    while not reducing.is_completed():
        work.compute()
        pieces += 1
    beside_us = _since(began)
    reducing.wait()
    return _Sample(alone_us, two_us, beside_us, piece_us, beside_us / max(1, pieces))


def _until_done(work: _Work, count: int) -> float:
    """Microseconds until so many all-reduces, begun at once, have all ended."""
    distributed.barrier(group=work.group)
    began = time.perf_counter_ns()
    for one in [work.begin(index) for index in range(count)]:
        one.wait()
    return _since(began)


def _since(began_ns: int) -> float:
    return (time.perf_counter_ns() - began_ns) / 1e3


def _once_cuda(work: _Work) -> _Sample:
    """By device events, after a small all-reduce that makes the devices wait for each other while the host enqueues ahead."""

    def timed(run: Callable[[], object]) -> float:
        before, after = _begin(work), _event()
        run()
        after.record()
        torch.cuda.synchronize(work.device)
        return float(before.elapsed_time(after)) * 1e3

    alone_us = timed(lambda: work.begin(0).wait())
    two_us = timed(lambda: [one.wait() for one in [work.begin(0), work.begin(1)]])
    piece_us = timed(lambda: work.compute(_PIECES)) / _PIECES
    pieces = max(_PIECES, math.ceil(2 * alone_us / piece_us))  # computing lasts longer than the collective
    aside = torch.cuda.Stream(work.device)  # type: ignore[no-untyped-call]
    before, reduced, computed = _begin(work), _event(), _event()
    reducing = work.begin(0)
    work.compute(pieces)
    computed.record()
    with torch.cuda.stream(aside):
        reducing.wait()
        reduced.record(aside)
    torch.cuda.synchronize(work.device)
    beside_us, whole_us = (float(before.elapsed_time(one)) * 1e3 for one in (reduced, computed))
    beside = pieces - max(0.0, whole_us - beside_us) / piece_us  # pieces that ran while the collective did
    # Of a collective that is over before one piece is, nothing can be told.
    piece_beside_us = min(beside_us, whole_us) / beside if beside >= 1 else piece_us
    return _Sample(alone_us, two_us, beside_us, piece_us, piece_beside_us)


def _begin(work: _Work) -> torch.cuda.Event:
    """The event from which time counts: all devices have come to it."""
    torch.cuda._sleep(_SLEEP_CYCLES)  # type: ignore[no-untyped-call]
    distributed.all_reduce(torch.zeros(1, device=work.device), group=work.group)
    before = _event()
    before.record()
    return before


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
