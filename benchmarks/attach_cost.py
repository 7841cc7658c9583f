"""What does `dpscope attach` add to a timed step? Blocks of an attached loop against blocks of the
same loop alone.

    python benchmarks/attach_cost.py [--pairs 200]

One model on one CPU thread is attached to and within its timed window: torch's hook after the
optimizer's step, what its class does at the model's call, one reading of the clock. For the bare
blocks both are taken away. A pair runs both, every second one in the other order; the result is the
median of the pairs' differences per step with its 95% interval (order statistics, no distribution
assumed), of the processor's time of this thread and of the wall clock, and its share of a step of 5
ms. Four loops:

- a tiny layer, step after step: what the hooks take where nothing empties the caches;
- the same layer, asleep for the rest of 5 ms in each step, as where a device computes: caches are cold;
- the same with four micro-batches in a step, each of which calls the model;
- a model that computes for about 5 ms.

The first three are held to 1% of 5 ms by the processor's time, which other programs disturb least;
the last is only shown, since its differences are those of two numbers a hundred times as large.
"""

import argparse
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from scipy.stats import binom
from torch import nn
from torch.optim.optimizer import _global_optimizer_post_hooks

from dpscope.profiling.attached.session import Session
from dpscope.profiling.attached.settings import AttachSettings

WARMUP_STEPS = 10
STEP_US = 5000.0
MOST_SHARE = 0.01  # of such a step

Clocks = tuple[float, float]  # processor time and wall clock, microseconds


@dataclass(frozen=True)
class Case:
    """A loop, and how many steps a block of it has."""

    name: str
    width: int
    steps: int
    step_s: float = 0.0  # at least: the rest is slept
    calls: int = 1  # of the model in a step: micro-batches
    judged: bool = True


CASES = (
    Case("tiny layer", 4, 100),
    Case("tiny layer, asleep", 4, 4, STEP_US / 1e6),
    Case("asleep, four calls", 4, 4, STEP_US / 1e6, calls=4),
    Case("computing", 400, 4, judged=False),
)


class Model(nn.Sequential):
    """Its class is changed, and that of no other module."""


class Loop:
    """A model with its optimizer and one batch."""

    def __init__(self, case: Case) -> None:
        torch.manual_seed(0)
        width = case.width
        layers = (
            [nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU()]
            if width > 10
            else []
        )
        self.model = Model(*layers, nn.Linear(width, 10))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3)
        samples = 64 if width > 10 else 1
        self.inputs, self.targets = torch.randn(samples, width), torch.randint(0, 10, (samples,))
        self.step_s, self.calls = case.step_s, case.calls

    def run(self, steps: int) -> Clocks:
        """Microseconds a step."""
        began_s, began_processor_s = time.perf_counter(), time.thread_time()
        for index in range(steps):
            self.optimizer.zero_grad()
            for _ in range(self.calls):
                loss = nn.functional.cross_entropy(self.model(self.inputs), self.targets)
                loss.backward()  # type: ignore[no-untyped-call]
            self.optimizer.step()
            if (left_s := began_s + (index + 1) * self.step_s - time.perf_counter()) > 0:
                time.sleep(left_s)
        ended_s, ended_processor_s = time.perf_counter(), time.thread_time()
        return (ended_processor_s - began_processor_s) * 1e6 / steps, (
            ended_s - began_s
        ) * 1e6 / steps


def measure(case: Case, pairs: int) -> tuple[list[Clocks], list[Clocks]]:
    """Microseconds a step of each pair's bare and attached block."""
    loop = Loop(case)
    found: dict[str, list[Clocks]] = {"bare": [], "attached": []}
    with tempfile.TemporaryDirectory() as folder:
        settings = AttachSettings(
            Path(folder),
            "attach_cost.py",
            warmup_steps=WARMUP_STEPS,
            steps=pairs * case.steps + 1,
            traced_steps=0,
        )
        session = Session(settings, lambda text: None)
        loop.run(WARMUP_STEPS)
        hooks = dict(_global_optimizer_post_hooks)
        call = Model.__dict__["__call__"]
        assert hooks, "nothing is attached"

        def switch(attached: bool) -> None:
            if attached:
                Model.__call__ = call  # type: ignore[method-assign]
                _global_optimizer_post_hooks.update(hooks)
            elif "__call__" in vars(Model):
                del Model.__call__
                _global_optimizer_post_hooks.clear()

        for index in range(pairs):
            for name in ("bare", "attached") if index % 2 else ("attached", "bare"):
                switch(attached=name == "attached")
                found[name].append(loop.run(case.steps))
        session.close("the benchmark ended")
        assert session.saved, "the attached blocks were not in the timed window"
    return found["bare"], found["attached"]


def show(case: Case, bare: list[Clocks], attached: list[Clocks]) -> bool:
    """Print what is added; returns whether a case that is judged stays within MOST_SHARE by the
    interval's upper end.
    """
    within = True
    for clock, name in enumerate(("processor", "wall clock")):
        alone_us, attached_us = [one[clock] for one in bare], [one[clock] for one in attached]
        added = sorted(second - first for first, second in zip(alone_us, attached_us, strict=True))
        outer = int(binom.ppf(0.025, len(added), 0.5))
        low, high = added[max(0, outer - 1)], added[min(len(added) - 1, len(added) - outer)]
        median = statistics.median(added)
        if clock == 0:
            within = high <= MOST_SHARE * STEP_US
        sys.stdout.write(
            f"{case.name:18} {name:10}: bare {statistics.median(alone_us):.0f} us a step, attached adds {median:+.1f} us (95%: "
            f"{low:+.1f} to {high:+.1f}; {len(added)} pairs), {median / STEP_US:+.2%} of 5 ms\n"
        )
    return within or not case.judged


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--pairs", type=int, default=200)
    pairs = parser.parse_args().pairs
    torch.set_num_threads(1)
    within = [show(case, *measure(case, pairs)) for case in CASES]
    sys.exit(0 if all(within) else 1)


if __name__ == "__main__":
    main()
