"""What the user asks for, in parts: workload, optimizer, measurement, matrix, and what the report is told. Imports no torch.

Each part refuses, when it is made, what it cannot be (SettingError). `None` means "choose for this machine"; the resolved
types hold no such `None`. For the user the settings of all parts stand side by side (settings.py).
"""

import math
from typing import Literal

from dpscope.profiling.records.matrix import Amp, Matrix, ResolvedMatrix
from dpscope.profiling.records.settings import ConfigPart, SettingCheck, SettingError
from dpscope.profiling.records.stored import Stored

MINIMUM_WARMUP_STEPS = 5  # DDP rebuilds its buckets in the first iterations
_LONGEST_TIMEOUT_S = 1e7  # 115 days; what waits for it counts in nanoseconds


class Workload(ConfigPart, frozen=True):
    """What is trained, on what data, and how batches reach it."""

    device: Literal["auto", "cuda", "cpu"] = "auto"
    model: str = "auto"  # auto, resnet18_cifar, a torchvision classification model, or package.module:function
    data: Literal["synthetic", "fake", "digits", "cifar10"] = "synthetic"
    data_dir: str = "data"
    download: bool = False
    samples: int = 50_000  # samples an epoch, for synthetic and fake data (the others have their own)
    workers: int = 2  # DataLoader workers per process
    workers_total: int | None = None  # DataLoader workers per cell, shared by its processes
    pin_memory: bool = False
    transforms: Literal["per-batch", "per-image"] = "per-batch"  # how images are augmented and normalised
    amp: Amp = "off"
    seed: int = 0

    def checks(self) -> list[SettingCheck]:
        return [
            ("samples", self.samples >= 1, "an epoch needs 1 sample or more"),
            ("workers", self.workers >= 0, "must be 0 or more; 0 loads in the training process"),
            ("workers_total", (self.workers_total or 0) >= 0, "must be 0 or more"),
            ("seed", 0 <= self.seed < 2**63, "must be 0 or more and below 2^63"),
        ]


class Optimizer(ConfigPart, frozen=True):
    """Settings of SGD."""

    learning_rate: float = 0.1
    momentum: float = 0.9
    weight_decay: float = 5e-4

    def checks(self) -> list[SettingCheck]:
        return [
            ("learning_rate", 0 < self.learning_rate < math.inf, "must be a number above 0"),
            ("momentum", 0 <= self.momentum < math.inf, "must be a number, 0 or more"),
            ("weight_decay", 0 <= self.weight_decay < math.inf, "must be a number, 0 or more"),
        ]


class Measurement(ConfigPart, frozen=True):
    """How much of each cell is measured, and for how long at most."""

    warmup_steps: int = 5
    steps: int | None = None  # timed steps per repeat
    epochs: int | None = None  # or whole timed epochs, after one untimed
    traced_steps: int = 3  # whole traced steps asked for; one more is traced
    repeats: int | None = None
    calibrate: bool = True  # time the collectives before the cells
    timeout_s: float = 900.0  # of one cell's job

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.steps is not None and self.epochs is not None:
            fix = "give one of them; --epochs times whole epochs, --steps that many steps"
            raise SettingError(fix, joined=" and ", steps=self.steps, epochs=self.epochs)

    def checks(self) -> list[SettingCheck]:
        return [
            (
                "warmup_steps",
                self.warmup_steps >= 1,
                "must be 1 or more",
            ),
            ("steps", self.steps is None or self.steps >= 1, "must be 1 or more"),
            ("epochs", self.epochs is None or self.epochs >= 1, "must be 1 or more"),
            ("traced_steps", self.traced_steps >= 1, "must be 1 or more"),
            ("repeats", self.repeats is None or self.repeats >= 1, "must be 1 or more"),
            timeout_check(self.timeout_s),
        ]


class ResolvedMeasurement(Measurement, frozen=True, kw_only=True):
    """How much is measured, with the repeats chosen for this machine."""

    repeats: int


def timeout_check(timeout_s: float) -> SettingCheck:
    """What has to hold of the time limit of a job."""
    return "timeout_s", 0 < timeout_s <= _LONGEST_TIMEOUT_S, "must be above 0 seconds and at most 1e7"


class Reporting(ConfigPart, frozen=True):
    """What the report alone is told."""

    link: str | None = None  # what the user says of the link between the devices, such as 100Gb/s
    target_efficiency: float | None = None  # 0..1, what findings judge against
    published: str | None = None  # a CSV file of values that others published of such cells

    def checks(self) -> list[SettingCheck]:
        return [
            (
                "target_efficiency",
                self.target_efficiency is None or 0 < self.target_efficiency <= 1,
                "must be above 0 and at most 1; 0.8 is 80%",
            )
        ]


class RunConfig(Stored, frozen=True):
    """What `dpscope run` is asked for."""

    workload: Workload = Workload()
    optimizer: Optimizer = Optimizer()
    measurement: Measurement = Measurement()
    matrix: Matrix = Matrix()
    reporting: Reporting = Reporting()

    def __post_init__(self) -> None:
        """A script that is attached to may be too short for as many steps: its manifest holds what it had."""
        if type(self) is RunConfig and self.measurement.warmup_steps < MINIMUM_WARMUP_STEPS:
            fix = f"must be {MINIMUM_WARMUP_STEPS} or more: DDP rebuilds its buckets in the first steps"
            raise SettingError(fix, warmup_steps=self.measurement.warmup_steps)


MAY_CHANGE = ("repeats", "timeout_s", "download", "calibrate", *Reporting.__struct_fields__)
"""Settings that say how often and how patiently a run is measured, or how it is told: they may change while it is resumed."""


class ResolvedConfig(RunConfig, frozen=True, kw_only=True):
    """What will be measured: a configuration with nothing left to choose for this machine. A manifest holds one."""

    measurement: ResolvedMeasurement
    matrix: ResolvedMatrix
