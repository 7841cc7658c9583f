"""Jobs of two ranks on devices, in which what differs between two jobs is planted kernel by kernel.

A step runs every operator twice: first without communication, then next to an all-reduce that
begins between the halves and ends after the second one. Kernels follow one another without a gap. A
short all-reduce, for which a rank may come late, ends the step.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tests.helpers.made_traces import ALL_REDUCE, Event, launch, on_device, operator, step, write

RANKS = 2
STEPS = 6  # the first has no beginning
OPERATORS = 20
LATE_RANK = 1
TRANSFER_US = 3_000.0  # longer than the second half
LAST_US = 100.0
ELEMENTS = 1_000_000


def duration_us(number: int) -> float:
    """Of one call of an operator: 20 to 210 us."""
    return 20.0 + 10.0 * number


@dataclass(frozen=True)
class Planted:
    """What a job is like: durations of operators times so much, further calls of them, a rank that
    comes late to the last all-reduce, kernels next to communication longer by so much, kernels of other names.
    """

    slower: Mapping[int, float] = field(default_factory=dict)
    twice: frozenset[int] = frozenset()
    late_us: float = 0.0
    contention: float = 1.0
    renamed: frozenset[int] = frozenset()
    noise: float = 0.0  # standard deviation of the logarithm of durations; of repeats half as much
    shapes: bool = True

    def calls(self, number: int) -> int:
        """In each half of a step."""
        return 2 if number in self.twice else 1

    def kernel(self, number: int) -> str:
        return f"{'other_' if number in self.renamed else ''}kernel_{number}"


def write_jobs(folder: Path, planted: Planted, repeats: int = 1, seed: int = 0) -> Path:
    """A folder with a folder for each repeat; of one repeat its traces alone."""
    random = np.random.default_rng(seed)
    for repeat in range(repeats):
        own = folder / f"job{repeat}" if repeats > 1 else folder
        own.mkdir(parents=True)
        pace = float(np.exp(random.normal(0.0, planted.noise / 2)))
        halves = [_durations(planted, random, pace) for _ in range(STEPS)]
        begin = 1e12 + repeat * 1e9
        for rank in range(RANKS):
            write(own, _events(planted, halves, begin, rank), rank, RANKS)
    return folder


_Half = list[tuple[int, float]]  # operator and duration of each kernel


def _durations(planted: Planted, random: np.random.Generator, pace: float) -> tuple[_Half, _Half]:
    def half(factor: float) -> _Half:
        return [
            (number, duration_us(number) * planted.slower.get(number, 1.0) * factor * noise)
            for number in range(OPERATORS)
            for noise in np.exp(random.normal(0.0, planted.noise, planted.calls(number))) * pace
        ]

    return half(1.0), half(planted.contention)


def _events(
    planted: Planted, halves: list[tuple[_Half, _Half]], begin: float, rank: int
) -> list[Event]:
    """Both ranks run the same kernels, so that the all-reduce of both ends at one moment."""
    job = _Rank(planted)
    at = begin
    for number, (first, second) in enumerate(halves):
        job.begin(at)
        job.run(first)
        reduced_us = job.device_us + TRANSFER_US * planted.contention
        job.reduce(job.device_us, reduced_us, 2 * number)
        job.run(second)
        late_us = planted.late_us if rank == LATE_RANK else 0.0
        end = reduced_us + planted.late_us + LAST_US
        job.reduce(reduced_us + late_us, end, 2 * number + 1)
        job.events.append(step(number + 1, at, end - at - 1.0))
        at = end
    return job.events


class _Rank:
    """The events of one rank, and where its host and its device are in time."""

    def __init__(self, planted: Planted) -> None:
        self.planted = planted
        self.events: list[Event] = []
        self._correlation = 0

    def begin(self, at_us: float) -> None:
        """A step."""
        self._host_us = at_us + 1.0
        self.device_us = at_us

    def run(self, kernels: _Half) -> None:
        """One kernel after the other."""
        for number, time_us in kernels:
            sizes = {"Input Dims": [[8, number + 1]], "Input type": ["float"]}
            shown: dict[str, Any] = sizes if self.planted.shapes else {}
            self.events.append(operator(f"aten::op_{number}", self._host_us, 0.9, **shown))
            grid: dict[str, Any] = {"grid": [number + 1, 1, 1], "block": [128, 1, 1]}
            self._launch(self.planted.kernel(number), self.device_us, time_us, 7, grid)
            self.device_us += time_us

    def reduce(self, begin_us: float, end_us: float, sequence: int) -> None:
        """An all-reduce of both ranks."""
        recorded: dict[str, Any] = {
            "Collective name": "allreduce",
            "In msg nelems": ELEMENTS,
            "Out msg nelems": ELEMENTS,
            "dtype": "Float",
            "Group size": RANKS,
            "Process Group Name": "0",
            "Process Group Ranks": "[0, 1]",
            "Seq": sequence,
        }
        self._launch(ALL_REDUCE, begin_us, end_us - begin_us, 20, recorded)

    def _launch(
        self, name: str, start_us: float, time_us: float, stream: int, recorded: dict[str, Any]
    ) -> None:
        self._correlation += 1
        call = launch(self._correlation, self._host_us + 0.1) | {"dur": 0.5}
        kernel = on_device(name, start_us, time_us, self._correlation, stream=stream, **recorded)
        self.events += [call, kernel]
        self._host_us += 1.0
