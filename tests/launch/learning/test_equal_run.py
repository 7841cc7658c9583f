"""Settings of `dpscope equal`: defaults and refusals."""

import io
from pathlib import Path

import pytest
from rich.console import Console

from dpscope.launch.learning.equal_run import (
    describe_comparison,
    equality_settings,
    samples_of_two_epochs,
)
from dpscope.launch.measuring.run import plan_run
from dpscope.launch.planning.run_config import load_config
from dpscope.profiling.records.equality import EQUALITY_FOLDER, EQUALITY_NAME
from dpscope.profiling.store.errors import DpscopeError


def test_defaults_compare_three_strategies_over_two_epochs() -> None:
    settings = equality_settings({"device": "cpu"})
    assert [job.cell.name for job in settings.jobs] == [
        "single-d1-b8",
        "dp-host-d2-b4",
        "ddp-d2-b4",
    ]
    kinds = [list(job.trainings) for job in settings.jobs]
    assert kinds == [["compared", "rounding"], ["compared"], ["compared"]]
    assert (settings.config.workload.data, settings.steps, settings.precision) == (
        "fake",
        20,
        "float64",
    )
    # 9 whole batches of 8 and a last one of 5: epochs of 10 steps.
    assert settings.config.workload.samples == 77
    four = equality_settings({"device": "cpu", "strategy": "ddp,single", "devices": "4"})
    assert [job.cell.name for job in four.jobs] == ["single-d1-b8", "ddp-d4-b2"]
    assert [list(job.trainings) for job in four.jobs] == [["compared", "rounding"], ["compared"]]


@pytest.mark.parametrize(
    ("batch_size", "steps", "expected"), [(8, 20, 77), (32, 7, 81), (2, 1, 4), (4, 3, 7)]
)
def test_epochs_end_within_the_steps(batch_size: int, steps: int, expected: int) -> None:
    assert samples_of_two_epochs(batch_size, steps) == expected


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ({"strategy": "ddp"}, "--strategy ddp: there is nothing to compare it with"),
        ({"strategy": "single,hsdp"}, "--devices 2: hsdp shards within groups"),
        ({"devices": "1"}, "--devices 1: give one count of 2 or more"),
        ({"devices": "1,2"}, "--devices 1,2: give one count of 2 or more"),
        ({"batch_size": "7"}, "--batch-size 7: 2 devices cannot share a global batch of 7 equally"),
        ({"batch_size": "4,8"}, "--batch-size 4,8: one global batch is compared"),
        ({"batch_size": "8", "samples": 5}, "--batch-size 8: the data set has 5 samples"),
        # imports torch
        pytest.param(
            {"model": "resnet19"}, "--model resnet19: no such model", marks=pytest.mark.long
        ),
        (
            {"data": "cifar10", "data_dir": "/nowhere"},
            "--data cifar10: /nowhere/cifar-10-batches-py does not exist",
        ),
    ],
)
def test_mistakes_are_named(flags: dict[str, object], expected: str) -> None:
    with pytest.raises(DpscopeError) as raised:
        equality_settings({"device": "cpu", **flags})
    assert expected in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_run_may_follow_into_the_same_folder(tmp_path: Path) -> None:
    (tmp_path / EQUALITY_FOLDER).mkdir()
    (tmp_path / EQUALITY_NAME).write_text("{}")
    config = load_config(
        None, {"device": "cpu", "strategy": "single", "devices": "1", "batch_size": "8", "steps": 5}
    )
    assert plan_run(config, tmp_path).jobs


def test_a_dry_run_names_what_would_be_compared_and_writes_nothing(tmp_path: Path) -> None:
    printed = io.StringIO()
    settings = equality_settings({"device": "cpu", "steps": "3", "batch_size": "4"})
    describe_comparison(settings, tmp_path / "run", Console(file=printed, width=300))
    text = printed.getvalue()
    assert text.startswith(
        "dp-host-d2-b2, ddp-d2-b2 compared with single-d1-b4: 3 steps of 4 samples"
    )
    assert "float64" in text
    assert list(tmp_path.iterdir()) == []
