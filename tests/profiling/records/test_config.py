"""Parts of a configuration: invalid settings, and settings by name."""

from collections.abc import Callable

import pytest

from dpscope.profiling.records.config import Measurement, Optimizer, Reporting, RunConfig, Workload
from dpscope.profiling.records.matrix import Matrix
from dpscope.profiling.records.settings import (
    SettingError,
    declarations,
    in_parts,
    settings_of,
    top_level_settings,
    with_settings,
)
from dpscope.profiling.records.training import TrainConfig


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Workload(samples=0), "samples 0: an epoch needs 1 sample or more"),
        (lambda: Optimizer(momentum=-1.0), r"momentum -1\.0: must be 0 or more and below 1"),
        (lambda: Optimizer(momentum=1.0), r"momentum 1\.0: must be 0 or more and below 1"),
        (lambda: Optimizer(weight_decay=-1.0), r"weight_decay -1\.0: must be a number, 0 or more"),
        (lambda: RunConfig(measurement=Measurement(warmup_steps=4)), "warmup_steps 4: must be 5 or more"),
        (lambda: Measurement(steps=3, epochs=1), "steps 3 and epochs 1: give one of them"),
        (lambda: Matrix(batch_sizes=(8, 16), batch_growth=2), "batch_growth 2: growth needs one batch size"),
        (lambda: Matrix(overlap=("off",), bucket_mb=(5.0,)), r"bucket_mb 5\.0 with overlap off: without overlap"),
        (lambda: Matrix(strategies=("dp",), comm_hook=("fp16",)), "comm_hook fp16: only DDP and FSDP have it"),
        (
            lambda: Matrix(strategies=("fsdp", "hsdp"), comm_hook=("none", "powersgd")),
            "comm_hook none,powersgd: FSDP reduces in a type, none, fp16 or bf16, and powersgd is none; add ddp to --strategy "
            "fsdp,hsdp, or omit it",
        ),
        (lambda: Matrix(ddp_args=("foo",)), "ddp_args foo: foo is not NAME=VALUE"),
        (lambda: Reporting(target_efficiency=1.5), r"target_efficiency 1\.5: must be above 0 and at most 1"),
        (lambda: with_settings(RunConfig(), seed=-1), "seed -1: must be 0 or more"),
    ],
)
def test_a_part_refuses_invalid_settings(make: Callable[[], object], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        make()


def test_a_matrix_is_kept_in_order_without_repetition() -> None:
    matrix = Matrix(strategies=("ddp", "single", "ddp"), devices=(4, 1, 4), bucket_mb=(25.0, "default", 5.0))
    assert (matrix.strategies, matrix.devices) == (("single", "ddp"), (1, 4))
    assert matrix.bucket_mb == ("default", 5.0, 25.0)


def test_settings_by_name_are_unique_and_go_back_into_their_parts() -> None:
    for kind, parts in ((RunConfig, 5), (TrainConfig, 3)):
        found = in_parts(dict.fromkeys(declarations(kind)), kind).values()
        counts = [len(value) for value in found if isinstance(value, dict)]
        assert len(counts) == parts  # with no name in two of them:
        assert sum(counts) + len(top_level_settings(kind)) == len(declarations(kind)) > 20
    config = with_settings(RunConfig(), steps=7, model="tiny", devices=(2,), momentum=0.0)
    assert (config.measurement.steps, config.workload.model, config.optimizer.momentum) == (7, "tiny", 0.0)
    sgd = {"learning_rate": 0.1, "momentum": 0.0, "weight_decay": 5e-4}
    assert in_parts(settings_of(config), RunConfig)["optimizer"] == sgd
