"""From a TOML file and flags to a TrainConfig, validated at once. Imports no torch."""

from pathlib import Path

import msgspec

from dpscope.launch.planning.run_config import (
    build,
    build_matrix,
    build_part,
    check_idle,
    given_settings,
    raising_user_errors,
)
from dpscope.launch.workload.data_files import SMALL_RESNET
from dpscope.profiling.records.config import Optimizer, Workload
from dpscope.profiling.records.matrix import Matrix
from dpscope.profiling.records.settings import check_settings, declarations, own_settings, shown
from dpscope.profiling.records.training import TrainConfig
from dpscope.profiling.store.errors import DpscopeError

TRAIN_SETTINGS = {name: one for name, one in declarations(TrainConfig).items() if name != "seed"}
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


def load_train_config(config_path: Path | None, flags: dict[str, object]) -> TrainConfig:
    """The configuration of a TOML file overlaid by flags, as `run_config.load_config` reads them.

    Raises DpscopeError naming field, value and fix.
    """
    given, origins = given_settings(config_path, flags, TRAIN_SETTINGS)
    values = {**_DEFAULTS, **({} if _SCHEDULE.keys() & given.keys() else _SCHEDULE), **given}
    if values["data"] != "digits":  # elsewhere loading takes long enough to have workers for it
        values.setdefault("workers", Workload().workers)
    values.setdefault("workers", 0)
    workload = build_part(Workload, values, origins)
    matrix = build_matrix(values, origins, workload.amp)
    parts = {"workload": workload, "optimizer": build_part(Optimizer, values, origins), "matrix": matrix}
    _check_shared(workload, matrix, origins)
    config = build(
        TrainConfig, parts | {name: values[name] for name in own_settings(TrainConfig) if name in values}, origins
    )
    config = msgspec.structs.replace(
        config, seeds=tuple(dict.fromkeys(config.seeds)), milestones=tuple(sorted(set(config.milestones)))
    )
    with raising_user_errors(origins):
        check_settings(config)
    check_idle(config, origins)
    return config


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
