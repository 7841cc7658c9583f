"""What earlier versions stored with all settings side by side is read in parts."""

import json
from pathlib import Path

import msgspec
import pytest

from dpscope.profiling.records.config import Reporting, ResolvedConfig
from dpscope.profiling.records.equality import EqualityConfig
from dpscope.profiling.records.run import Manifest
from dpscope.profiling.records.settings import settings_of
from dpscope.profiling.records.training import ResolvedTrainConfig
from dpscope.profiling.store.files import decoded
from tests.helpers.paths import EXAMPLE_RUN

FLAT = json.loads((EXAMPLE_RUN / "manifest.json").read_text())


class _Trained(msgspec.Struct):
    config: ResolvedTrainConfig


class _Compared(msgspec.Struct):
    config: EqualityConfig


def test_every_setting_of_the_example_run_is_read_and_stored_in_parts() -> None:
    manifest = decoded(json.dumps(FLAT).encode(), Manifest)
    read = json.loads(msgspec.json.encode(settings_of(manifest.config)))
    assert {name: read[name] for name in FLAT["config"]} == FLAT["config"]
    assert decoded(msgspec.json.encode(manifest), Manifest) == manifest


def test_settings_that_came_later_were_stored_side_by_side_too() -> None:
    later = {
        "amp_variants": ["bf16"],
        "ddp_args": ["default", "batched_grad_copy=true"],
        "comm_hook": ["none", "powersgd"],
        "calibrate": False,
        "link": "100Gb/s",
        "target_efficiency": 0.8,
    }
    config = decoded(json.dumps({**FLAT, "config": {**FLAT["config"], **later}}).encode(), Manifest).config
    assert (config.matrix.amp_variants, config.matrix.comm_hook) == (("bf16",), ("none", "powersgd"))
    assert config.matrix.ddp_args == ("default", "batched_grad_copy=true")
    assert (config.measurement.calibrate, config.reporting) == (False, Reporting("100Gb/s", 0.8))


def test_a_training_had_what_it_shares_with_a_run_under_run() -> None:
    run = {**FLAT["config"], "seed": 0, "timeout_s": 60.0, "learning_rate": 0.2}
    stored = {"config": {"run": run, "epochs": 7, "seeds": [1, 2]}}
    config = decoded(json.dumps(stored).encode(), _Trained).config
    # run.epochs, of a measurement, is null and must not stand for the training's.
    assert (config.epochs, config.seeds, config.timeout_s) == (7, (1, 2), 60.0)
    assert (config.optimizer.learning_rate, config.matrix.devices) == (0.2, (1, 2))


def test_a_comparison_of_strategies_had_a_runs_settings() -> None:
    config = decoded(json.dumps({"config": FLAT["config"]}).encode(), _Compared).config
    assert (config.steps, config.timeout_s, config.matrix.batch_sizes) == (10, 900.0, (8,))


@pytest.mark.parametrize("name", ["invented", "workload"])
def test_what_no_version_had_is_refused(name: str) -> None:
    stored = {**FLAT, "config": {**FLAT["config"], name: 1}}
    with pytest.raises(msgspec.ValidationError):
        decoded(json.dumps(stored).encode(), Manifest)


def test_the_parts_of_today_are_not_taken_for_an_older_form(tmp_path: Path) -> None:
    made = decoded(json.dumps(FLAT).encode(), Manifest).config
    plain = json.loads(msgspec.json.encode(made))
    assert msgspec.convert(plain, ResolvedConfig) == made
