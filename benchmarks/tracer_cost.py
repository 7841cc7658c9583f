"""What does tracing cost a training step? Step time under each setting of torch.profiler over the
untraced one.

    python benchmarks/tracer_cost.py [--rounds 5] [--steps 8] [--batch-size 8]

One process, CIFAR's ResNet-18 on the CPU (or on the first GPU), settings interleaved within a round
so that drift favours none; a ratio is taken within a round. The profiler's start and the writing of
the trace are not in it.
"""

import argparse
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

os.environ.setdefault("KINETO_LOG_LEVEL", "99")

import torch
from torch.profiler import ProfilerActivity, profile

from dpscope.launch.workload.models import cifar_resnet18

WARMUP_STEPS = 3


def settings() -> dict[str, Callable[[], AbstractContextManager[Any]]]:
    """The profiler's settings by name; `untraced` is none."""
    activities = [ProfilerActivity.CPU] + (
        [ProfilerActivity.CUDA] if torch.cuda.is_available() else []
    )
    every_thread = torch._C._profiler._ExperimentalConfig(profile_all_threads=True)
    return {
        "untraced": nullcontext,
        "traced": lambda: profile(activities=activities),
        "record_shapes": lambda: profile(activities=activities, record_shapes=True),
        "shapes, all threads": lambda: profile(
            activities=activities, record_shapes=True, experimental_config=every_thread
        ),
        "shapes, with_stack": lambda: profile(
            activities=activities, record_shapes=True, with_stack=True
        ),
    }


def step_seconds(
    step: Callable[[], None], context: AbstractContextManager[Any], steps: int
) -> float:
    """Median step under one setting."""
    seconds = []
    with context:
        for index in range(WARMUP_STEPS + steps):
            start = time.perf_counter()
            step()
            if index >= WARMUP_STEPS:
                seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


def make_step(batch_size: int) -> Callable[[], None]:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = cifar_resnet18().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    images = torch.randn(batch_size, 3, 32, 32, device=device)
    labels = torch.randint(10, (batch_size,), device=device)

    def step() -> None:
        torch.nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if device.type == "cuda":
            torch.cuda.synchronize()

    return step


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--batch-size", type=int, default=8)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    step = make_step(arguments.batch_size)
    rounds = [
        {name: step_seconds(step, make(), arguments.steps) for name, make in settings().items()}
        for _ in range(arguments.rounds)
    ]
    where = (
        torch.cuda.get_device_name()
        if torch.cuda.is_available()
        else f"{platform.machine()} CPU, 1 thread"
    )
    sys.stdout.write(f"{where}, torch {torch.__version__}, batch {arguments.batch_size}\n")
    for name in rounds[0]:
        ratios = [one[name] / one["untraced"] for one in rounds]
        median_ms = 1e3 * statistics.median(one[name] for one in rounds)
        sys.stdout.write(
            f"{name:20} {median_ms:8.1f} ms   {statistics.median(ratios):.3f} of untraced "
            f"({min(ratios):.3f}-{max(ratios):.3f}, {len(rounds)} rounds of {arguments.steps} steps)\n"
        )


if __name__ == "__main__":
    main()
