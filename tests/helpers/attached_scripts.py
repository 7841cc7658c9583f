"""Scripts of one process, run and measured in the test's process, and their measurements read from
the run folder.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pandas as pd
import torch
from torch import Tensor, nn

from dpscope.profiling.attached.session import Session
from dpscope.profiling.attached.settings import AttachSettings
from dpscope.profiling.records.run import Cell, RankResult
from dpscope.profiling.store.folders import RepeatFolder, RunFolder

WARMUP, TIMED = 5, 4
TRACED = 4  # two steps under a tracer that discards, one traced and the one before it
UNTIMED = WARMUP + TRACED + 2  # two settling steps
WHOLE = UNTIMED + TIMED


@contextmanager
def attached(out: Path, notes: list[str], **settings: object) -> Iterator[Session]:
    chosen = {"warmup_steps": WARMUP, "steps": TIMED, "traced_steps": 1, **settings}
    session = Session(AttachSettings(out=out, script="train.py", **chosen), notes.append)  # type: ignore[arg-type]
    try:
        yield session
    finally:
        session.close("the script ended")


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.layer(inputs)
        return outputs


def net_with_sgd() -> tuple[Net, torch.optim.SGD]:
    model = Net()
    return model, torch.optim.SGD(model.parameters())


def loss_of(model: nn.Module, samples: int) -> Tensor:
    loss: Tensor = model(torch.ones(samples, 3)).sum()
    return loss


def train(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    steps: int,
    samples: int = 8,
    micro_batches: int = 1,
) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        for _ in range(micro_batches):
            loss_of(model, samples // micro_batches).backward()  # type: ignore[no-untyped-call]
        optimizer.step()


def validate(model: nn.Module, samples: int = 100) -> None:
    model.eval()
    with torch.no_grad():
        loss_of(model, samples)
    model.train()


def train_attached(
    out: Path,
    notes: list[str] | None = None,
    steps: int = WHOLE,
    samples: int = 8,
    micro_batches: int = 1,
    **settings: object,
) -> None:
    """Train a small model under measurement."""
    with attached(out, [] if notes is None else notes, **settings):
        train(*net_with_sgd(), steps, samples, micro_batches)


def measured(out: Path) -> tuple[Cell, RepeatFolder, RankResult, pd.DataFrame]:
    """The only cell of a run, with its only repeat and process, and the samples."""
    (planned,) = RunFolder(out).manifest().plan
    ((_, repeat),) = RunFolder(out).done_repeats(planned.cell)
    (rank,) = repeat.ranks()
    return planned.cell, repeat, rank, pd.DataFrame(repeat.samples([rank]))


def timed_steps(samples: pd.DataFrame) -> list[int]:
    """The numbers of the timed steps."""
    return list(samples[samples["measuring_pass"] == "timed"]["step"])


def counting_backend(
    graphs: list[int],
) -> Callable[[torch.fx.GraphModule, list[Tensor]], Callable[..., object]]:
    """A backend for torch.compile that runs each graph unchanged and records its number of
    inputs.
    """

    def compiled(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Callable[..., object]:
        graphs.append(len(inputs))
        return graph.forward

    return compiled
