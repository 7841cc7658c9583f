"""A DDP step on GPUs whose kernels slow down by a known factor while an all-reduce runs next to
them.
"""

import math
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tests.generated_traces.builder import (
    KERNEL_NAMES,
    DeviceWork,
    TraceBuilder,
    one_group,
    recorded,
)
from tests.generated_traces.model import Trace
from tests.generated_traces.writing import write_trace

MAIN, COMPUTE, OWN = 5100, 7, 40
KERNELS = (
    ("ampere_sgemm_128x64_tn", [[64, 512], [512, 512]], 400.0),
    ("ampere_sgemm_128x64_tn", [[64, 64], [64, 64]], 90.0),
)


@dataclass(frozen=True)
class Contended:
    """`factor`: duration next to communication over duration alone. `noise`: standard deviation of
    the logarithm of durations.

    `drift`: that of what the kernels of a step share, and of what neighbouring kernels share.
    `shapes`: whether input sizes are recorded. Without them each step overlaps other kernels.
    `together`: each step overlaps a third of its kernels, neighbours from a random place on.
    `forward`: where it is not 1, a third of the kernels, which all run free, belong to the forward
    pass and take this many times as long as those of the backward pass. `overlap`: whether any
    all-reduce runs. The two sizes of kernels have the same name, grid and block; the shorter ones
    run last and are the ones that overlap more often.
    """

    factor: float = 1.3
    noise: float = 0.03
    drift: float = 0.0
    shapes: bool = True
    together: bool = False
    forward: float = 1.0
    overlap: bool = True
    steps: int = 5
    layers: int = 12
    seed: int = 0


def write_contended_job(folder: Path, options: Contended, ranks: int = 2) -> list[Path]:
    """The traces of all ranks."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"0_{rank}.pt.trace.json" for rank in range(ranks)]
    for rank, path in enumerate(paths):
        write_trace(_trace(rank, ranks, options), path)
    return paths


def _trace(rank: int, ranks: int, options: Contended) -> Trace:
    generator = np.random.default_rng((options.seed, rank))
    builder = TraceBuilder(pid=MAIN)
    builder.clock[MAIN] = 0.0
    for step in range(options.steps):
        with builder.annotation(f"ProfilerStep#{step}", MAIN):
            builder.synchronize(MAIN, _step(builder, rank, step, options, generator) + 20.0)
    return builder.trace(["NVIDIA A100-SXM4-80GB"] * ranks, one_group(rank, ranks))


def _step(
    builder: TraceBuilder, rank: int, step: int, options: Contended, generator: np.random.Generator
) -> float:
    """Launch one step; when its last kernel ends."""
    total = 2 * options.layers
    places = np.arange(total)
    if options.together:
        overlapped = (places - generator.integers(total)) % total < total // 3
    elif options.shapes:
        overlapped = (places % 6 == 4) | (places % 6 == 5) | (places >= total - 5)
    else:
        overlapped = generator.random(total) < 0.4
    overlapped[[0, -1]] = False
    in_forward = (places % 6 < 2) & (options.forward != 1.0)
    overlapped &= ~in_forward
    now = builder.clock[MAIN] + 300.0
    shared = _shared(total, options.drift, generator)
    for place in places.tolist():
        name, sizes, alone_us = KERNELS[place // options.layers]
        alone_us *= float(np.exp(options.noise * generator.standard_normal() + shared[place]))
        if in_forward[place]:
            alone_us *= options.forward
        node = (
            nullcontext()
            if in_forward[place]
            else builder.op("autograd::engine::evaluate_function: MmBackward0", MAIN)
        )
        shown = {"Input Dims": sizes} if options.shapes else {}
        late_us = 0.0
        duration = alone_us
        if overlapped[place] and options.overlap:
            late_us = 0.25 * alone_us if place % 6 == 4 else 0.0
            duration = late_us + (alone_us - late_us) * options.factor
        launch = {"grid": [64, 8, 1], "block": [256, 1, 1]}
        with node, builder.op("aten::mm", MAIN, **shown):
            builder.launch(
                MAIN, DeviceWork(rank, COMPUTE, name, now, duration, metadata=dict(launch))
            )
        if overlapped[place] and options.overlap:
            fields, reduce = (
                recorded("all_reduce", 1000, 1000),
                KERNEL_NAMES["nccl_2_19"]["all_reduce"],
            )
            work = DeviceWork(rank, OWN, reduce, now + late_us, duration - late_us, metadata=fields)
            builder.collective(MAIN, "all_reduce", work, fields=fields)
        now += duration + 2.0
    return now


def _shared(kernels: int, drift: float, generator: np.random.Generator) -> list[float]:
    """Logarithms of the slowdown that a step and a kernel's neighbours share: an autoregressive
    process about the step's.
    """
    if not drift:
        return [0.0] * kernels
    of_step, near, shared = drift * generator.standard_normal(), 0.0, []
    for noise in generator.standard_normal(kernels).tolist():
        near = 0.9 * near + drift * math.sqrt(1 - 0.9**2) * noise
        shared.append(of_step + near)
    return shared
