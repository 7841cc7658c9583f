"""The passes of a cell: warm-up, device states under load, and precisions without units on a
GPU.
"""

import os
import platform
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from dpscope.launch.jobs.devices import DeviceType
from dpscope.launch.jobs.worker_process import TorchrunPlace
from dpscope.launch.measuring import cell as measured_cell
from dpscope.launch.measuring.assigned_cell import AssignedCell
from dpscope.launch.measuring.cell import CellProcess, precision_findings
from dpscope.profiling.records.config import Measurement, RunConfig
from dpscope.profiling.records.run import Cell, DeviceState
from dpscope.profiling.store.folders import RepeatFolder


def process_of(kind: DeviceType, model: nn.Module, step: Any, config: RunConfig) -> CellProcess:
    job = AssignedCell(config, Cell("single", 1, 4), 0, kind, 1, RepeatFolder(Path(os.devnull)))
    place = TorchrunPlace(rank=0, local_rank=0, world_size=1, local_world_size=1, node=0)
    devices = (torch.device("cuda", 0) if kind == "cuda" else torch.device("cpu"),)
    return CellProcess(job, place, devices, model, step)


def steps_taken(
    monkeypatch: pytest.MonkeyPatch,
    device: DeviceType,
    step_s: float,
    config: RunConfig,
    epoch: int = 7,
) -> int:
    """Warm-up steps of a cell, with a clock that each step advances by `step_s`."""
    now_s, taken = [0.0], [0]

    class Step:
        batches = SimpleNamespace(steps_per_epoch=epoch)

        def __call__(self) -> None:
            taken[0] += 1
            now_s[0] += step_s

    process = process_of(device, nn.Linear(2, 2), Step(), config)
    monkeypatch.setattr(measured_cell, "time", SimpleNamespace(monotonic=lambda: now_s[0]))
    monkeypatch.setattr(measured_cell, "synchronise", lambda devices: None)
    monkeypatch.setattr(measured_cell, "rank_0_value", lambda number, _: number)
    measured_cell._warm_up(process)
    return taken[0]


@pytest.mark.parametrize(
    ("device", "step_s", "warmup_steps", "expected"),
    [
        ("cuda", 0.25, 5, 11),  # 11 steps take 2.75 s
        ("cuda", 0.125, 5, 12),  # 11 take 1.375 s, one more 1.5 s
        ("cuda", 1 / 128, 5, 192),  # 1.5 s x 128
        ("cuda", 1 / 128, 400, 400),  # as configured
        ("cpu", 0.005, 5, 5),
    ],
)
def test_a_device_is_warmed_up_for_a_time(
    monkeypatch: pytest.MonkeyPatch,
    device: DeviceType,
    step_s: float,
    warmup_steps: int,
    expected: int,
) -> None:
    """Under every strategy alike: tests/virtual_gpu/test_strategies.py."""
    config = RunConfig(measurement=Measurement(warmup_steps=warmup_steps))
    assert steps_taken(monkeypatch, device, step_s, config) == expected


def test_whole_epochs_are_warmed_up_where_epochs_are_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Epochs of 7 steps of 1/16 s: 11 steps are two epochs of 0.875 s; 10 steps more are another
    two.
    """
    config = RunConfig(measurement=Measurement(warmup_steps=5, steps=None, epochs=1))
    assert steps_taken(monkeypatch, "cuda", 1 / 16, config) == 28
    assert steps_taken(monkeypatch, "cpu", 1 / 16, config) == 7


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


def process_on(device: Device, kind: DeviceType) -> CellProcess:
    process = process_of(kind, nn.Identity(), device.step, RunConfig())
    return replace(process, device_states=device.state if kind == "cuda" else None)


def test_states_are_sampled_several_times_while_steps_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """The host queues its steps at once, the device works on them for a second: every state is from
    that second.
    """
    device = Device()
    monkeypatch.setattr(measured_cell, "synchronise", device.synchronise)
    (state,) = measured_cell._states_under_load(process_on(device, "cuda"), QUEUED_S)
    assert device.steps == 17  # 1 s over 60 ms, rounded up
    assert len(device.looks) >= 4
    assert (state.sm_clock_mhz, state.throttle_reasons) == (1500, ("sw_power_cap",))


class Ended(Exception):  # noqa: N818 (no error)
    """Of a cell, once its load is known."""


def test_the_load_is_of_steps_as_long_as_the_timed_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 0.2, 0.3 and 0.9 s the median."""
    timed = [SimpleNamespace(step_us=step_us) for step_us in (2e5, 9e5, 3e5)]
    lengths_s: list[float] = []

    def under_load(process: CellProcess, step_s: float) -> None:
        lengths_s.append(step_s)
        raise Ended

    monkeypatch.setattr(measured_cell, "matmul_peak", lambda amp: None)
    monkeypatch.setattr(measured_cell, "_warm_up", lambda process: None)
    monkeypatch.setattr(measured_cell, "_timed", lambda process: ([], timed))
    monkeypatch.setattr(measured_cell, "_states_under_load", under_load)
    batches = SimpleNamespace(leave_out_short_batches=lambda: None)
    step = SimpleNamespace(batches=batches)
    with pytest.raises(Ended):
        measured_cell.run_passes(process_of("cpu", nn.Identity(), step, RunConfig()))
    assert lengths_s == [0.3]


def test_a_long_step_is_sampled_and_a_cpu_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    device = Device()
    monkeypatch.setattr(measured_cell, "synchronise", device.synchronise)
    assert len(measured_cell._states_under_load(process_on(device, "cuda"), 30.0)) == 1
    assert device.steps == 2
    assert measured_cell._states_under_load(process_on(device, "cpu"), QUEUED_S) == ()
    assert device.steps == 2


def test_bf16_is_emulated_by_gpus_without_units_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus = (torch.device("cuda", 0), torch.device("cuda", 1))
    names = ["Tesla V100-SXM2-16GB", "NVIDIA A100"]
    monkeypatch.setattr(
        torch.cuda, "get_device_capability", lambda device: [(7, 0), (8, 0)][device.index]
    )
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: names[device.index])
    monkeypatch.setattr(torch.version, "hip", None)
    (finding,) = precision_findings("bf16", gpus)
    assert finding.code == "bf16_emulated"
    assert finding.message == "Tesla V100-SXM2-16GB has no units for bf16: it is emulated there."
    assert precision_findings("fp16", gpus) == precision_findings("bf16", gpus[1:]) == []
    # AMD's numbers of capability mean something else
    monkeypatch.setattr(torch.version, "hip", "6.4")
    assert precision_findings("bf16", gpus) == []


@pytest.mark.parametrize(
    ("machine", "avx512_bf16", "amx", "emulated"),
    [
        ("x86_64", False, False, True),
        ("x86_64", True, False, False),
        ("x86_64", False, True, False),
        ("aarch64", False, False, False),
    ],
)
def test_bf16_is_emulated_by_x86_cpus_without_units_for_it(
    monkeypatch: pytest.MonkeyPatch, machine: str, avx512_bf16: bool, amx: bool, emulated: bool
) -> None:
    monkeypatch.setattr(platform, "machine", lambda: machine)
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: avx512_bf16)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: amx)
    messages = [one.message for one in precision_findings("bf16", (torch.device("cpu"),))]
    assert messages == (
        ["The CPU has no units for bf16: it is emulated there."] if emulated else []
    )
    assert precision_findings("off", (torch.device("cpu"),)) == []
