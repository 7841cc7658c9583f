"""The settings of a run, in parts: workload, optimizer, measurement, matrix, and what only its
report uses. Imports no torch.

Each part refuses values that it cannot have when it is made (SettingError). `None` means "choose
for this machine"; the resolved types hold no such `None`. For users the settings of all parts stand
side by side (settings.py).
"""

import math
from collections.abc import Callable
from typing import Any, ClassVar, Literal

from dpscope.profiling.records.matrix import (
    Amp,
    Matrix,
    ResolvedMatrix,
    collectives_idle,
    several_devices_idle,
)
from dpscope.profiling.records.settings import (
    AMOUNT,
    COMPARED,
    DATA,
    TARGETS,
    ConfigPart,
    SettingError,
    at_least,
    holds,
    setting,
)
from dpscope.profiling.records.stored import Stored
from dpscope.profiling.records.typed_text import parse_part, words

MINIMUM_WARMUP_STEPS = 5  # DDP rebuilds its buckets in the first iterations
_LONGEST_TIMEOUT_S = 1e7  # 115 days; what waits for it counts in nanoseconds
SEED_CHECK = holds(lambda seed: 0 <= seed < 2**63, "must be 0 or more and below 2^63")
ABOVE_0 = holds(lambda value: 0 < value < math.inf, "must be a number above 0")
BELOW_1 = holds(lambda value: 0 <= value < 1, "must be 0 or more and below 1")
_FROM_0 = holds(lambda value: 0 <= value < math.inf, "must be a number, 0 or more")
TIMEOUT_CHECK = holds(
    lambda value: 0 < value <= _LONGEST_TIMEOUT_S, "must be above 0 seconds and at most 1e7"
)


def _precisions(text: str) -> tuple[str, tuple[str, ...]]:
    """The workload's precision and the others from ``off,bf16``: the first in the documented order
    is the workload's.
    """
    given = set(words(text))
    choices = ("off", "bf16", "fp16")
    first, *others = [name for name in choices if name in given] + sorted(given.difference(choices))
    return first, tuple(others)


def needs_data(kinds: tuple[str, ...], reason: str) -> Callable[[Any], str]:
    """Why a setting has no effect with other data than these; ``{}`` in the reason is the data."""
    return lambda config: "" if (data := config.workload.data) in kinds else reason.format(data)


_IN_FOLDER = needs_data(("cifar10",), "only cifar10 is read from a folder, and --data is {}")
_GENERATED = needs_data(("synthetic", "fake"), "{} has its own number of samples")
_IMAGES = needs_data(
    ("digits", "cifar10"), "only the images of cifar10 and digits are transformed, and --data is {}"
)
_LOADED = needs_data(
    ("fake", "digits", "cifar10"), "synthetic data is one batch on the device, never loaded"
)


def _workers_idle(config: Any) -> str:
    total = (
        "--workers-total sets how many there are"
        if config.workload.workers_total is not None
        else ""
    )
    return _LOADED(config) or total


def _pinned_idle(config: Any) -> str:
    on_cpu = (
        "batches are copied to no GPU with --device cpu" if config.workload.device == "cpu" else ""
    )
    return on_cpu or _LOADED(config)


class Workload(ConfigPart, frozen=True):
    """What is trained, on what data, and how batches reach it."""

    heading: ClassVar[str] = DATA

    device: Literal["auto", "cuda", "cpu"] = setting("auto", "auto, cuda or cpu", heading=AMOUNT)
    model: str = setting(
        "auto",
        "auto, resnet18_cifar, resnet8_cifar, gpt_5m, a torchvision model, or your own package.module:function",
        help_of={
            "train": "resnet8_cifar, resnet18_cifar, a torchvision model, or package.module:function"
        },
    )
    data: Literal["synthetic", "fake", "digits", "cifar10"] = setting(
        "synthetic",
        "synthetic, fake, digits or cifar10",
        help_of={"train": "digits, cifar10 or fake"},
    )
    data_dir: str = setting("data", "the folder of cifar10", idle=_IN_FOLDER)
    download: bool = setting(False, "fetch cifar10", idle=_IN_FOLDER)
    samples: int = setting(
        50_000,
        "samples an epoch of synthetic and fake data",
        help_of={"train": "samples an epoch of fake data"},
        check=at_least(1, "an epoch needs 1 sample or more"),
        idle=_GENERATED,
    )
    workers: int = setting(
        2,
        "loader workers per process",
        check=at_least(0, "must be 0 or more; 0 loads in the training process"),
        idle=_workers_idle,
    )
    workers_total: int | None = setting(
        None, "loader workers per cell, shared by its processes", check=at_least(0), idle=_LOADED
    )
    pin_memory: bool = setting(
        False, "copy batches to GPUs from page-locked memory", idle=_pinned_idle
    )
    transforms: Literal["per-batch", "per-image"] = setting(
        "per-batch",
        "images are transformed a batch at a time from memory, or one by one from PIL images by torchvision's transforms",
        listed=True,
        idle=_IMAGES,
    )
    amp: Amp = setting(
        "off",
        "off, bf16 or fp16, or several: off,bf16",
        heading=COMPARED,
        text=_precisions,
        sets=("amp_variants",),
        joins=lambda _: True,
    )
    seed: int = setting(0, "seed of weights and data", check=SEED_CHECK)


class Optimizer(ConfigPart, frozen=True):
    """Settings of SGD."""

    heading: ClassVar[str] = DATA

    learning_rate: float = setting(0.1, "SGD's learning rate", option="lr", check=ABOVE_0)
    momentum: float = setting(0.9, "SGD's momentum", check=BELOW_1)
    weight_decay: float = setting(5e-4, "SGD's weight decay", check=_FROM_0)


class Measurement(ConfigPart, frozen=True):
    """How much of each cell is measured, and for how long at most."""

    heading: ClassVar[str] = AMOUNT

    warmup_steps: int = setting(
        5,
        "untimed steps before anything is measured, 5 or more",
        option="warmup",
        check=at_least(1),
    )
    steps: int | None = setting(
        None,
        "timed steps per repeat",
        help_of={"equal": "steps under each strategy"},
        check=at_least(1),
    )
    epochs: int | None = setting(
        None, "time whole epochs instead of --steps, after one untimed epoch", check=at_least(1)
    )
    traced_steps: int = setting(3, "whole traced steps; one more is traced", check=at_least(1))
    repeats: int | None = setting(
        None, "interleaved repeats of every cell, in changing order", check=at_least(1)
    )
    calibrate: bool = setting(
        True,
        "time the collectives first, which takes seconds, unless the folder has a calibration",
        heading=TARGETS,
        idle=several_devices_idle,
    )
    record_collectives: bool = setting(
        False,
        "record every collective of each cell; the report names the folders to analyze",
        idle=collectives_idle,
    )
    timeout_s: float = setting(
        900.0, "seconds one cell's job may take", option="timeout", check=TIMEOUT_CHECK
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.steps is not None and self.epochs is not None:
            fix = "give one of them; --epochs times whole epochs, --steps that many steps"
            raise SettingError(fix, joined=" and ", steps=self.steps, epochs=self.epochs)


class ResolvedMeasurement(Measurement, frozen=True, kw_only=True):
    """How much is measured, with the repeats chosen for this machine."""

    repeats: int


class Reporting(ConfigPart, frozen=True):
    """What only the report uses."""

    heading: ClassVar[str] = TARGETS

    link: str | None = setting(
        None,
        'the rate of the link between the devices, in one direction: 100Gb/s, 12.5GB/s, "PCIe 4.0 x16", "NVLink 3"',
        idle=several_devices_idle,
    )
    target_efficiency: float | None = setting(
        None,
        "judged in the findings, such as 80% or 0.8",
        text=parse_part,
        idle=several_devices_idle,
    )
    published: str | None = setting(
        None, "a CSV file of published values, which --tables shows next to the measured ones"
    )


class RunConfig(Stored, frozen=True):
    """The settings of `dpscope run`."""

    workload: Workload = Workload()
    optimizer: Optimizer = Optimizer()
    measurement: Measurement = Measurement()
    matrix: Matrix = Matrix()
    reporting: Reporting = Reporting()

    def __post_init__(self) -> None:
        """A script that is attached to may be too short for as many steps: its manifest holds what
        it had.
        """
        if type(self) is RunConfig and self.measurement.warmup_steps < MINIMUM_WARMUP_STEPS:
            fix = f"must be {MINIMUM_WARMUP_STEPS} or more: DDP rebuilds its buckets in the first steps"
            raise SettingError(fix, warmup_steps=self.measurement.warmup_steps)


MAY_CHANGE = ("repeats", "timeout_s", "download", "calibrate", *Reporting.__struct_fields__)
"""Settings of how often and how patiently a run is measured, and of its report: they may change
while it is resumed.
"""


class ResolvedConfig(RunConfig, frozen=True, kw_only=True):
    """What will be measured: a configuration with nothing left to choose for this machine. A
    manifest holds one.
    """

    measurement: ResolvedMeasurement
    matrix: ResolvedMatrix
