"""Parts of a configuration, and settings by name; tests/launch/planning/test_run_config.py shows
what they refuse.
"""

import msgspec
import pytest

from dpscope.profiling.records.config import ResolvedConfig, ResolvedMeasurement, RunConfig
from dpscope.profiling.records.matrix import Matrix, ResolvedMatrix
from dpscope.profiling.records.run import Cell
from dpscope.profiling.records.settings import (
    SettingError,
    declarations,
    in_parts,
    settings_of,
    top_level_settings,
    with_settings,
)
from dpscope.profiling.records.training import TrainConfig


def test_a_matrix_is_kept_in_order_without_repetition() -> None:
    matrix = Matrix(
        strategies=("ddp", "single", "ddp"), devices=(4, 1, 4), bucket_mb=(25.0, "default", 5.0)
    )
    assert (matrix.strategies, matrix.devices) == (("single", "ddp"), (1, 4))
    assert matrix.bucket_mb == ("default", 5.0, 25.0)


def test_each_default_has_the_type_of_its_setting() -> None:
    """`setting` hides a default from mypy: what is stored of it must be readable as the field's
    type.
    """
    run = RunConfig()
    for config in (run, TrainConfig(run.workload, run.optimizer, run.matrix, epochs=1)):
        assert msgspec.convert(msgspec.to_builtins(config), type(config)) == config


def test_settings_by_name_are_unique_checked_and_go_back_into_their_parts() -> None:
    with pytest.raises(SettingError, match="seed -1: must be 0 or more"):
        with_settings(RunConfig(), seed=-1)
    for kind, parts in ((RunConfig, 5), (TrainConfig, 3)):
        found = in_parts(dict.fromkeys(declarations(kind)), kind).values()
        counts = [len(value) for value in found if isinstance(value, dict)]
        assert len(counts) == parts  # with no name in two of them:
        assert sum(counts) + len(top_level_settings(kind)) == len(declarations(kind)) > 20
    config = with_settings(RunConfig(), steps=7, model="tiny", devices=(2,), momentum=0.0)
    assert (config.measurement.steps, config.workload.model, config.optimizer.momentum) == (
        7,
        "tiny",
        0.0,
    )
    sgd = {"learning_rate": 0.1, "momentum": 0.0, "weight_decay": 5e-4}
    assert in_parts(settings_of(config), RunConfig)["optimizer"] == sgd


def test_options_and_settings_of_earlier_versions_are_read() -> None:
    """A cell's name is that of its folder, and a run with such an option is not resumed without
    it.
    """
    options = {"static_graph": "on", "gradient_as_bucket_view": "on"}
    stored = {"strategy": "ddp", "devices": 2, "batch_size": 8, "options": options}
    assert msgspec.convert(stored, Cell).name == "ddp-d2-b8-bucket-view-static-graph"
    matrix = {"devices": [2], "batch_sizes": [8], "static_graph": ["off", "on"]}
    config = ResolvedConfig(
        measurement=ResolvedMeasurement(repeats=1), matrix=msgspec.convert(matrix, ResolvedMatrix)
    )
    assert settings_of(config)["static_graph"] == ("on", "off")
    assert "static_graph" not in declarations(RunConfig)
