"""The devices' states are those under load: sampled during untimed steps, not before them and not after."""

import os
import time
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import nn

from dpscope.launch.measuring import cell_passes
from dpscope.launch.measuring.cell_passes import CellProcess
from dpscope.profiling.records.config import RunConfig
from dpscope.profiling.records.run import Cell, DeviceState
from dpscope.profiling.store.folders import RepeatFolder

QUEUED_S = 0.06  # for which the device works on a step that the host has queued at once


class Device:
    """A GPU whose queue drains QUEUED_S after each step; at its power limit only while it works."""

    def __init__(self) -> None:
        self.steps = 0
        self.looks: list[bool] = []
        self._done_s = 0.0

    def step(self) -> None:
        self.steps += 1
        self._done_s = max(self._done_s, time.monotonic()) + QUEUED_S

    def synchronise(self, devices: object = None) -> None:
        time.sleep(max(0.0, self._done_s - time.monotonic()))

    def state(self) -> tuple[DeviceState, ...]:
        busy = time.monotonic() < self._done_s
        self.looks.append(busy)
        reasons = ("sw_power_cap",) if busy else ()
        return (DeviceState(index=0, sm_clock_mhz=1500 if busy else 210, throttle_reasons=reasons),)


def process_on(device: Device, kind: str) -> CellProcess:
    return CellProcess(
        config=RunConfig(),
        cell=Cell(strategy="single", devices=1, batch_size=4),
        node=0,
        rank=0,
        devices=(torch.device("cuda", 0) if kind == "cuda" else torch.device("cpu"),),
        model=nn.Identity(),
        step=cast(Any, device.step),
        folder=RepeatFolder(Path(os.devnull)),
        report=lambda _: None,
        device_states=device.state if kind == "cuda" else None,
    )


def test_states_are_sampled_several_times_while_steps_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """The host queues its steps in no time, the device works on them for a second: every state is of that second."""
    device = Device()
    monkeypatch.setattr(cell_passes, "synchronise", device.synchronise)
    (state,) = cell_passes._states_under_load(process_on(device, "cuda"), QUEUED_S)
    assert device.steps == 17  # 1 s over 60 ms, rounded up
    assert len(device.looks) >= 4
    assert (state.sm_clock_mhz, state.throttle_reasons) == (1500, ("sw_power_cap",))


def test_a_long_step_is_sampled_and_a_cpu_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    device = Device()
    monkeypatch.setattr(cell_passes, "synchronise", device.synchronise)
    assert len(cell_passes._states_under_load(process_on(device, "cuda"), 30.0)) == 1
    assert device.steps == 2
    assert cell_passes._states_under_load(process_on(device, "cpu"), QUEUED_S) == ()
    assert device.steps == 2
