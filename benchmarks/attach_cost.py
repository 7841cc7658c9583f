"""What does `dpscope attach` add to a timed step? Blocks of an attached loop beside blocks of the same loop left alone.

    python benchmarks/attach_cost.py [--pairs 300] [--steps 5] [--width 400]

One model on one CPU thread whose step takes about 5 ms is attached to and within its timed window: torch's hook after the
optimizer's step, the hook at the model's call, one reading of the clock. For the bare blocks torch's tables of hooks are emptied.
A pair runs both, every second one in the other order; what is told is the median of the pairs' differences per step with its 95%
interval (order statistics, no distribution assumed): of the wall clock, and of the processor's time. Run it on a machine that
does nothing else: programs beside it empty the caches between two steps, and what is added then is several times as much.
"""

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path

import torch
from scipy.stats import binom
from torch import nn
from torch.optim.optimizer import _global_optimizer_post_hooks

from dpscope.profiling.attached.session import Session
from dpscope.profiling.attached.settings import AttachSettings

WARMUP_STEPS = 10
MOST_SHARE = 0.01  # of a step

Clocks = tuple[float, float]  # wall clock and processor time, microseconds


class Loop:
    """A model with its optimizer and one batch."""

    def __init__(self, width: int) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(
            nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10)
        )
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3)
        self.inputs, self.targets = torch.randn(64, width), torch.randint(0, 10, (64,))

    def run(self, steps: int) -> Clocks:
        """Microseconds a step."""
        began_s, began_processor_s = time.perf_counter(), time.process_time()
        for _ in range(steps):
            loss = nn.functional.cross_entropy(self.model(self.inputs), self.targets)
            self.optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            self.optimizer.step()
        ended_s, ended_processor_s = time.perf_counter(), time.process_time()
        return (ended_s - began_s) * 1e6 / steps, (ended_processor_s - began_processor_s) * 1e6 / steps


def measure(pairs: int, steps: int, width: int) -> tuple[list[Clocks], list[Clocks]]:
    """Microseconds a step of each pair's bare and attached block."""
    loop = Loop(width)
    found: dict[str, list[Clocks]] = {"bare": [], "attached": []}
    with tempfile.TemporaryDirectory() as folder:
        settings = AttachSettings(Path(folder), "attach_cost.py", warmup_steps=WARMUP_STEPS, steps=pairs * steps + 1)
        session = Session(settings, lambda text: None)
        session.listen()
        loop.run(WARMUP_STEPS)
        tables = (_global_optimizer_post_hooks, loop.model._forward_pre_hooks)
        hooks = [dict(table) for table in tables]
        assert all(hooks), "nothing is attached"
        for index in range(pairs):
            for name in ("bare", "attached") if index % 2 else ("attached", "bare"):
                for table, own in zip(tables, hooks, strict=True):
                    table.clear()
                    table.update(own if name == "attached" else {})
                found[name].append(loop.run(steps))
        session.close("the benchmark ended")
        assert session.saved, "the attached blocks were not in the timed window"
    return found["bare"], found["attached"]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--pairs", type=int, default=300)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--width", type=int, default=400)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    bare, attached = measure(arguments.pairs, arguments.steps, arguments.width)
    shares = []
    for clock, name in enumerate(("wall clock", "processor")):
        alone, beside = [one[clock] for one in bare], [one[clock] for one in attached]
        added = sorted(second - first for first, second in zip(alone, beside, strict=True))
        outer = int(binom.ppf(0.025, len(added), 0.5))
        low, high = added[max(0, outer - 1)], added[min(len(added) - 1, len(added) - outer)]
        step, median = statistics.median(alone), statistics.median(added)
        shares.append(low / step)
        sys.stdout.write(
            f"{name:10}: bare {step:.0f} us a step, attached adds {median:+.1f} us (95%: {low:+.1f} to {high:+.1f}; "
            f"{len(added)} pairs), {median / step:+.2%} of it\n"
        )
    sys.exit(int(shares[1] > MOST_SHARE))


if __name__ == "__main__":
    main()
