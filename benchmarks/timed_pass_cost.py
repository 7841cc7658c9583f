"""What does dpscope's timed pass add to a step? Its loop against a bare one, on a small model.

    python benchmarks/timed_pass_cost.py [--pairs 300] [--steps 5] [--batch-size 8] [--processes 6]

ResNet-8 for CIFAR on one CPU thread, the same model, batch and optimizer. The bare loop is forward,
backward, step, zero_grad and nothing else, the clock around all of it. Both loops alternate: within
one process on a single layer, whose steps are short enough to show what the loop itself takes; then
on ResNet-8; then as processes that run one of them. A pair runs bare and dpscope, every second one
in the other order; the result is the median of the pairs' differences per step with its 95%
interval (order statistics, no distribution assumed), their quartiles and their number: of the wall
clock, and of the processor's time, which other programs on the machine disturb less.
"""

import argparse
import json
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import torch
from scipy.stats import binom
from torch import nn

from dpscope.launch.workload.input_pipeline import open_stream
from dpscope.launch.workload.models import build_model
from dpscope.launch.workload.train_step import TrainStep
from dpscope.profiling.instruments.step_timer import time_block
from dpscope.profiling.records.config import Optimizer, Workload
from dpscope.profiling.records.run import Cell

CPU = torch.device("cpu")
WARMUP_STEPS = 10
LAYER_STEPS = 50

Clocks = tuple[float, float]  # wall clock and processor time, microseconds
Block = Callable[[], Clocks]
"""Runs some steps; returns what one took."""


class OneLayer(nn.Module):
    """Next to nothing to compute."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3 * 32 * 32, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.layer(images.flatten(1))
        return logits


def make_loops(batch_size: int, steps: int, own: nn.Module | None = None) -> dict[str, Block]:
    """`steps` steps of each loop, of ResNet-8 or of the model `own`."""
    workload = Workload(model="resnet8_cifar", data="synthetic")
    torch.manual_seed(0)
    built = build_model(workload.model)
    model = (own or built.model).train()
    batches = open_stream(
        workload, Cell(strategy="single", devices=1, batch_size=batch_size), built, 0, CPU
    )
    step = TrainStep(model, batches, Optimizer(), workload.amp, CPU)
    images, labels = batches.next_batch()

    def bare() -> Clocks:
        began = clocks()
        for _ in range(steps):
            loss = nn.functional.cross_entropy(model(images), labels)
            loss.backward()  # type: ignore[no-untyped-call]
            step.optimizer.step()
            step.optimizer.zero_grad(set_to_none=True)
        return per_step(began, clocks(), steps)

    def timed() -> Clocks:
        read: list[Clocks] = []  # where the timed pass reads its own clock
        time_block(step, steps, CPU, synchronise=lambda: read.append(clocks()))
        return per_step(*read, steps)

    return {"bare": bare, "dpscope": timed}


def clocks() -> Clocks:
    return time.perf_counter() * 1e6, time.process_time() * 1e6


def per_step(began: Clocks, ended: Clocks, steps: int) -> Clocks:
    return (ended[0] - began[0]) / steps, (ended[1] - began[1]) / steps


def alternating(measure: Callable[[str], Clocks], pairs: int) -> dict[str, list[Clocks]]:
    """Both loops `pairs` times, every second pair in the other order."""
    found: dict[str, list[Clocks]] = {"bare": [], "dpscope": []}
    for index in range(pairs):
        for name in ("bare", "dpscope") if index % 2 else ("dpscope", "bare"):
            found[name].append(measure(name))
    return found


def describe(title: str, found: dict[str, list[Clocks]]) -> str:
    """One line per clock."""
    lines = []
    for clock, name in enumerate(("wall clock", "processor")):
        bare, timed = ([one[clock] for one in found[loop]] for loop in ("bare", "dpscope"))
        added = sorted(second - first for first, second in zip(bare, timed, strict=True))
        outer = int(binom.ppf(0.025, len(added), 0.5))
        low, _, high = statistics.quantiles(added, n=4)
        interval = f"{added[max(0, outer - 1)]:+.0f} to {added[min(len(added) - 1, len(added) - outer)]:+.0f}"
        lines.append(
            f"{title}, {name:10}: bare {statistics.median(bare):6.0f} us a step, dpscope adds {statistics.median(added):+4.0f} "
            f"(95%: {interval}; half of {len(added)} pairs {low:+.0f} to {high:+.0f})"
        )
    return "\n".join(lines)


def in_a_process(name: str, arguments: argparse.Namespace) -> Clocks:
    """The median block of a fresh process that runs one loop."""
    command = [sys.executable, __file__, "--only", name]
    for option in ("pairs", "steps", "batch_size"):
        command += [f"--{option.replace('_', '-')}", str(getattr(arguments, option))]
    ended = subprocess.run(command, capture_output=True, text=True, check=True)
    wall, processor = json.loads(ended.stdout)
    return float(wall), float(processor)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--pairs", type=int, default=300)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument(
        "--processes", type=int, default=6, help="pairs of processes; 0 leaves them out"
    )
    parser.add_argument("--only", choices=("bare", "dpscope"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    loops = make_loops(arguments.batch_size, arguments.steps)
    for block in loops.values():
        for _ in range(-(-WARMUP_STEPS // arguments.steps)):
            block()
    if arguments.only:
        blocks = [loops[arguments.only]() for _ in range(arguments.pairs)]
        sys.stdout.write(
            json.dumps([statistics.median(clock) for clock in zip(*blocks, strict=True)])
        )
        return
    one_layer = make_loops(arguments.batch_size, LAYER_STEPS, OneLayer())
    for block in one_layer.values():
        block()
    sys.stdout.write(
        f"{platform.machine()} CPU, 1 thread, torch {torch.__version__}, ResNet-8, batch {arguments.batch_size}, blocks of "
        f"{arguments.steps} steps\n"
    )
    found = alternating(lambda name: one_layer[name](), arguments.pairs)
    sys.stdout.write(describe("a layer, one process ", found) + "\n")
    found = alternating(lambda name: loops[name](), arguments.pairs)
    sys.stdout.write(describe("one process          ", found) + "\n")
    if arguments.processes:
        found = alternating(lambda name: in_a_process(name, arguments), arguments.processes)
        sys.stdout.write(describe("alternating processes", found) + "\n")


if __name__ == "__main__":
    main()
