"""How long a cell warms up: alike for all strategies, and on a device long enough for its clocks."""

import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

from dpscope.launch.measuring import cell_passes
from dpscope.launch.measuring.cell_passes import CellProcess
from dpscope.profiling.records.config import Measurement, RunConfig
from dpscope.profiling.records.run import Cell
from dpscope.profiling.records.strategies import CellStrategy
from dpscope.profiling.store.folders import RepeatFolder


@pytest.fixture
def group(tmp_path: Path) -> Iterator[None]:
    distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


def steps_taken(
    monkeypatch: pytest.MonkeyPatch,
    strategy: CellStrategy,
    device: str,
    step_s: float,
    config: RunConfig,
    epoch: int = 7,
) -> int:
    """Steps that a cell warms up for, by a clock that each moves on by `step_s`."""
    now_s, taken = [0.0], [0]

    class Step:
        batches = SimpleNamespace(steps_per_epoch=epoch)

        def __call__(self) -> None:
            taken[0] += 1
            now_s[0] += step_s

    model = nn.Linear(2, 2)
    process = CellProcess(
        config=config,
        cell=Cell(strategy=strategy, devices=1 if strategy == "single" else 2, batch_size=4),
        node=0,
        rank=0,
        devices=(torch.device(device, 0) if device == "cuda" else torch.device("cpu"),),
        model=DistributedDataParallel(model) if strategy == "ddp" else model,
        step=cast(Any, Step()),
        folder=RepeatFolder(Path(os.devnull)),
        report=lambda _: None,
    )
    monkeypatch.setattr(cell_passes, "time", SimpleNamespace(monotonic=lambda: now_s[0]))
    monkeypatch.setattr(cell_passes, "synchronise", nothing_of)
    monkeypatch.setattr(cell_passes, "rank_0_value", lambda number, _: number)
    cell_passes._warm_up(process)
    return taken[0]


def nothing_of(_: object) -> None:
    """A double of what waits for a device."""


@pytest.mark.parametrize("strategy", ["single", "dp", "ddp"])
@pytest.mark.parametrize(
    ("step_s", "warmup_steps", "expected"),
    [
        (0.25, 5, 11),  # 11 steps take 2.75 s
        (0.125, 5, 12),  # 11 take 1.375 s, one more 1.5 s
        (1 / 128, 5, 192),  # 1.5 s x 128
        (1 / 128, 400, 400),  # as asked for
    ],
)
def test_a_device_is_warmed_up_alike_by_every_strategy(
    monkeypatch: pytest.MonkeyPatch,
    group: None,
    strategy: CellStrategy,
    step_s: float,
    warmup_steps: int,
    expected: int,
) -> None:
    config = RunConfig(measurement=Measurement(warmup_steps=warmup_steps))
    assert steps_taken(monkeypatch, strategy, "cuda", step_s, config) == expected


@pytest.mark.parametrize("strategy", ["single", "ddp"])
def test_a_cpu_is_warmed_up_for_the_steps_asked_for(
    monkeypatch: pytest.MonkeyPatch, group: None, strategy: CellStrategy
) -> None:
    assert steps_taken(monkeypatch, strategy, "cpu", 0.005, RunConfig(measurement=Measurement(warmup_steps=5))) == 5


def test_whole_epochs_are_warmed_up_where_epochs_are_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Epochs of 7 steps of 1/16 s: 11 steps are two epochs of 0.875 s; 10 steps more are another two."""
    config = RunConfig(measurement=Measurement(warmup_steps=5, steps=None, epochs=1))
    assert steps_taken(monkeypatch, "single", "cuda", 1 / 16, config) == 28
    assert steps_taken(monkeypatch, "single", "cpu", 1 / 16, config) == 7


def test_all_processes_take_rank_0s_number(group: None) -> None:
    from dpscope.launch.jobs.process_group import rank_0_value

    assert rank_0_value(17, torch.device("cpu")) == 17
