"""From a TOML file and flags to a TrainConfig, validated at once. Imports no torch."""

import math
from pathlib import Path

import msgspec

from dpscope.launch.planning.idle_settings import check_idle, idle_settings
from dpscope.launch.planning.run_config import (
    build_matrix,
    build_part,
    conversion_message,
    flag_name,
    given_settings,
    read_text,
    whole_numbers,
)
from dpscope.launch.workload.data_files import SMALL_RESNET
from dpscope.profiling.records.config import Optimizer, Workload, timeout_check
from dpscope.profiling.records.matrix import Matrix
from dpscope.profiling.records.settings import ConfigPart, own_settings, setting_names, shown
from dpscope.profiling.records.training import TrainConfig
from dpscope.profiling.store.errors import DpscopeError

_SETTINGS = tuple(name for name in setting_names(TrainConfig) if name != "seed")
"""Settings of a training; its workload's seed is one of `seeds`."""

_DEFAULTS: dict[str, object] = {
    "data": "digits",
    "model": SMALL_RESNET,
    "scaling": "strong",
    "learning_rate": 0.05,
    "epochs": 12,
}
_SCHEDULE: dict[str, object] = {"epochs": 12, "warmup_epochs": 1, "milestones": (7, 10)}
"""Used together if none of them is given; digits are learned to 99% with it."""
_EXAMPLES = {"seeds": "0,1,2", "milestones": "6,8"}
_CHOICES = {"learning_rate_scaling": "none, sqrt, linear"}


def load_train_config(config_path: Path | None, flags: dict[str, object]) -> TrainConfig:
    """The configuration of a TOML file overlaid by flags, as `run_config.load_config` reads them.

    Raises DpscopeError naming field, value and fix.
    """
    given, origins = given_settings(config_path, flags, _SETTINGS)
    values = {**_DEFAULTS, **({} if _SCHEDULE.keys() & given.keys() else _SCHEDULE), **given}
    if values["data"] != "digits":  # elsewhere loading takes long enough to have workers for it
        values.setdefault("workers", Workload().workers)
    values.setdefault("workers", 0)
    workload = build_part(Workload, values, origins)
    matrix = build_matrix(values, origins, workload.amp)
    parts = {"workload": workload, "optimizer": build_part(Optimizer, values, origins), "matrix": matrix}
    check_idle(idle_settings(workload, matrix), origins)
    _check_shared(workload, matrix, origins)
    learning = {name: values[name] for name in own_settings(TrainConfig) if name in values}
    return _learning_config(parts, learning, origins)


def _learning_config(parts: dict[str, ConfigPart], values: dict[str, object], origins: dict[str, str]) -> TrainConfig:
    """The configuration of these parts and the training's own settings."""
    for field, example in _EXAMPLES.items():
        value = values.get(field)
        if isinstance(value, str | int | float):
            values[field] = read_text(str(value), whole_numbers, origins[field], example) if value != "" else ()
        elif isinstance(value, list | tuple):
            values[field] = tuple(value)
    try:
        config = msgspec.convert({**parts, **values}, TrainConfig, strict=False)
    except msgspec.ValidationError as error:
        raise DpscopeError(conversion_message(str(error), TrainConfig, _CHOICES, values, origins)) from error
    config = msgspec.structs.replace(
        config, seeds=tuple(dict.fromkeys(config.seeds)), milestones=tuple(sorted(set(config.milestones)))
    )
    for field, holds, fix in _checks(config):
        if not holds:
            raise DpscopeError(f"{origins.get(field, flag_name(field))} {shown(getattr(config, field))}: {fix}")
    check_idle(_idle_fields(config), origins)
    return config


def _idle_fields(config: TrainConfig) -> dict[str, str]:
    """Fields that have no effect with the other settings, and why."""
    idle = {}
    if config.workload.data == "fake":
        idle["augment"] = "fake images are random already"
    if not config.milestones:
        idle["gamma"] = "there is no --milestones at which the learning rate falls"
    if config.matrix.scaling == "strong" and config.learning_rate_scaling != "none":
        idle["learning_rate_scaling"] = "under --scaling strong the global batch does not grow"
    return idle


def _checks(config: TrainConfig) -> list[tuple[str, bool, str]]:
    """(field, whether it is valid, the fix) of every field that is checked by itself."""
    return [
        ("epochs", config.epochs >= 1, "must be 1 or more"),
        ("seeds", bool(config.seeds), "no seed; write it as 0,1,2"),
        ("seeds", all(0 <= seed < 2**63 for seed in config.seeds), "every seed must be 0 or more and below 2^63"),
        ("milestones", min(config.milestones, default=1) >= 1, "every milestone must be 1 epoch or more"),
        ("gamma", 0 < config.gamma < math.inf, "must be a number above 0"),
        ("warmup_epochs", config.warmup_epochs >= 0, "must be 0 or more"),
        ("label_smoothing", 0 <= config.label_smoothing < 1, "must be 0 or more and below 1"),
        ("eval_batch_size", config.eval_batch_size >= 1, "must be 1 or more"),
        ("checkpoint_steps", config.checkpoint_steps is None or config.checkpoint_steps >= 1, "must be 1 step or more"),
        ("max_restarts", config.max_restarts >= 0, "must be 0 or more"),
        timeout_check(config.timeout_s),
    ]


def _check_shared(workload: Workload, matrix: Matrix, origins: dict[str, str]) -> None:
    """Raise DpscopeError for settings that are valid for a measurement and not for a training."""
    if workload.data == "synthetic":
        raise DpscopeError(
            f"{origins['data']} synthetic: one random batch teaches nothing; train on digits, cifar10 or fake"
        )
    if matrix.scaling == "both":
        raise DpscopeError(
            f"{origins['scaling']} both: a training reads its batch sizes in one way; give strong or weak"
        )
    if matrix.batch_growth is not None:
        raise DpscopeError(
            f"{origins['batch_sizes']} {shown(matrix.batch_sizes)}x{matrix.batch_growth}: name each batch size to train with, "
            "such as 32,128"
        )
