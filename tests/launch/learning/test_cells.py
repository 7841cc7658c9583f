"""The cells of a training, their learning rates and findings."""

import io
import shlex
from pathlib import Path

import pytest
from rich.console import Console

from dpscope.launch.jobs.assignment import read_assignment
from dpscope.launch.jobs.devices import Devices
from dpscope.launch.jobs.worker_process import TorchrunPlace
from dpscope.launch.learning.tasks import training_task
from dpscope.launch.learning.train_plan import (
    describe_trainings,
    load_train_config,
    make_train_plan,
    plan_trainings,
    resolve_training,
)
from dpscope.launch.planning.manifest import estimate_training
from dpscope.launch.workload.model_size import checked_model_size
from dpscope.profiling.records.config import Workload
from dpscope.profiling.records.training import PlannedTraining
from dpscope.profiling.store.errors import DpscopeError
from dpscope.profiling.store.training_folders import TrainFolder

CPU = Devices(kind="cpu", count=None)


def planned(file: Path | None = None, /, **flags: object) -> tuple[PlannedTraining, ...]:
    config = resolve_training(load_train_config(file, {"lr": 0.1, **flags}), CPU)
    return make_train_plan(config, "cpu")


def names(plan: tuple[PlannedTraining, ...]) -> list[str]:
    return [one.cell.name for one in plan]


def test_strong_scaling_divides_the_batch_and_has_one_single_device_each() -> None:
    plan = planned(devices="2", batch_size="64,32")
    assert names(plan) == [
        "single-d1-b32", "dp-host-d2-b16", "ddp-d2-b16", "single-d1-b64", "dp-host-d2-b32", "ddp-d2-b32",
    ]  # fmt: skip
    assert {one.learning_rate for one in plan} == {0.1}
    assert names(planned(devices="2", comm_hook="none,fp16", accumulate="2")) == [
        "single-d1-b32-accumulate-2", "dp-host-d2-b16-accumulate-2", "ddp-d2-b16-accumulate-2",
        "ddp-d2-b16-hook-fp16-accumulate-2",
    ]  # fmt: skip
    assert names(planned(devices="2", strategy="ddp")) == ["ddp-d2-b16"]
    assert names(planned(devices="1", strategy="single,ddp")) == ["single-d1-b32", "ddp-d1-b32"]
    # The default batch is the first multiple of 6 from 32 on.
    assert {one.cell.global_batch_size for one in planned(devices="1,2,3")} == {36}
    assert {one.cell.batch_size for one in planned(devices="3", scaling="weak")} == {32}


@pytest.mark.parametrize(
    ("scaling", "two", "four"),
    [("none", 0.1, 0.1), ("sqrt", 0.141421356, 0.2), ("linear", 0.2, 0.4)],
)
def test_learning_rates_follow_the_global_batch(scaling: str, two: float, four: float) -> None:
    plan = planned(
        devices="1,2,4", strategy="single,ddp", scaling="weak", learning_rate_scaling=scaling
    )
    assert {one.cell.devices: one.learning_rate for one in plan} == pytest.approx(
        {1: 0.1, 2: two, 4: four}
    )


def test_learning_rate_scaling_has_no_effect_under_strong_scaling(tmp_path: Path) -> None:
    """As an option it is refused; in a file, which may serve other trainings as well, it is not."""
    with pytest.raises(
        DpscopeError, match="--learning-rate-scaling does nothing here: under --scaling strong"
    ):
        planned(devices="2", learning_rate_scaling="linear")
    (tmp_path / "train.toml").write_text('learning_rate_scaling = "linear"')
    plan = planned(tmp_path / "train.toml", devices="2")
    assert {one.learning_rate for one in plan} == {0.1}


def test_samples_that_cannot_be_shared_are_counted() -> None:
    plan = planned(devices="2,4", data="fake", samples=37, batch_size="8", strategy="single,ddp")
    # 37 samples are padded to 38 and 40.
    assert {one.cell.devices: one.repeated_samples for one in plan} == {1: 0, 2: 1, 4: 3}
    # 1,440
    assert not any(one.repeated_samples for one in planned(devices="2,3,4,6,8", batch_size="48"))


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (
            {"devices": "1", "strategy": "dp"},
            "--strategy dp with --devices 1 and batches 32 leaves no cell",
        ),
        (
            {"devices": "3", "batch_size": "32"},
            "a global batch of 32 cannot be split over 3 devices",
        ),
        (
            {"batch_size": "2000"},
            "nothing to train: single-d1-b2000: a step takes 2,000 samples and the data set",
        ),
        ({"amp": "off,fp16"}, "--amp fp16 on the CPU"),
    ],
)
def test_what_cannot_be_trained_is_refused(flags: dict[str, str], message: str) -> None:
    with pytest.raises(DpscopeError, match=message):
        planned(**{"devices": "2", **flags})


def test_a_dry_run_prints_what_would_be_trained_and_writes_nothing(tmp_path: Path) -> None:
    printed = io.StringIO()
    config = load_train_config(None, {"device": "cpu", "devices": "2", "seeds": "0,1"})
    describe_trainings(config, tmp_path / "run", Console(file=printed, width=200))
    text = printed.getvalue()
    for cell in ("single-d1-b32", "dp-host-d2-b16", "ddp-d2-b16"):
        assert cell in text
    assert "6 jobs to do: about" in text
    commands = [line for line in text.splitlines() if '"task"' in line]
    assert len(commands) == 3
    assert list(tmp_path.iterdir()) == []


def leave_log(command: list[str]) -> None:
    """As torchrun opens it before it starts the processes."""
    (folder,) = [word.partition("=")[2] for word in command if word.startswith("--log-dir=")]
    attempt = Path(folder) / "none_1" / "attempt_0" / "0"
    attempt.mkdir(parents=True)
    (attempt / "stdout.log").touch()


@pytest.mark.process  # git, for the commit
def test_the_commands_of_a_dry_run_work_in_an_empty_folder(tmp_path: Path) -> None:
    """The first one begins the trainings that were planned, and the next ones find them."""
    flags: dict[str, object] = {"device": "cpu", "devices": "2", "epochs": 3, "lr": 0.5}
    config = load_train_config(None, flags)
    printed = io.StringIO()
    out = tmp_path / "run"
    describe_trainings(config, out, Console(file=printed, width=200), options=flags)
    commands = [line for line in printed.getvalue().splitlines() if '"task"' in line]
    for command, processes in zip(commands, (1, 1, 2), strict=True):
        words = shlex.split(command)
        assignment = read_assignment(words[-1:])
        leave_log(words)
        place = TorchrunPlace(0, 0, processes, processes, node=0)
        folder, _ = training_task(assignment, place)
        assert folder.path.parent.name == assignment.cell
    assert TrainFolder(out).manifest().config == plan_trainings(config, out).config
    with pytest.raises(DpscopeError, match="holds trainings with --lr"):
        plan_trainings(load_train_config(None, {**flags, "lr": 0.1}), out)


def test_an_estimate_is_of_the_epochs_that_are_left() -> None:
    config = load_train_config(None, {"device": "cpu", "devices": "2", "epochs": 8})
    resolved = resolve_training(config, CPU)
    (cell, *_) = [training.cell for training in make_train_plan(resolved, "cpu")]
    size = checked_model_size(resolved.workload, resolved.optimizer)
    whole, half, none = (estimate_training(cell, resolved, left, "cpu", size) for left in (8, 4, 0))
    assert whole.duration_s - half.duration_s == pytest.approx(half.duration_s - none.duration_s)
    assert whole.duration_s > half.duration_s > none.duration_s > 0
    # two checkpoints of weights and momentum of four bytes each
    assert whole.bytes == pytest.approx(2 * 2 * 4 * size.parameters, rel=0.05)


def test_a_schedule_is_whole_or_the_users_and_loading_takes_workers_where_it_costs_time() -> None:
    config = load_train_config(None, {})
    assert (config.epochs, config.warmup_epochs, config.milestones, config.workload.workers) == (
        12,
        1,
        (7, 10),
        0,
    )
    # no part of another's schedule
    for field, value in (("epochs", 5), ("warmup_epochs", 0), ("milestones", "")):
        other = load_train_config(None, {field: value})
        assert (other.warmup_epochs, other.milestones) == (0, ())
    assert load_train_config(None, {"data": "cifar10"}).workload.workers == Workload().workers > 0


def test_a_file_overlaid_by_flags(tmp_path: Path) -> None:
    path = tmp_path / "train.toml"
    path.write_text(
        'epochs = 8\nmilestones = [6, 4]\nlearning-rate-scaling = "sqrt"\nlr = 0.2\nseeds = "2,0,2"\n'
    )
    config = load_train_config(path, {"epochs": 9, "momentum": 0.5, "gamma": None})
    assert (config.epochs, config.milestones, config.seeds) == (9, (4, 6), (2, 0))
    assert (config.optimizer.learning_rate, config.optimizer.momentum, config.gamma) == (
        0.2,
        0.5,
        0.1,
    )
    assert config.learning_rate_scaling == "sqrt"
    assert load_train_config(path, {"milestones": ""}).milestones == ()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"epochs": 0}, "--epochs 0: must be 1 or more"),
        ({"seeds": "0,x"}, "--seeds 0,x: x is not a whole number; write it as 0,1,2"),
        ({"seeds": "-1"}, "--seeds -1: every seed must be 0 or more"),
        ({"milestones": "0,3"}, "--milestones 0,3: every milestone must be 1 epoch or more"),
        ({"gamma": 0}, "--gamma 0: must be a number above 0"),
        ({"label_smoothing": 1}, "--label-smoothing 1: must be 0 or more and below 1"),
        ({"learning_rate_scaling": "cubic"}, "cubic: unknown; choose from none, sqrt, linear"),
        (
            {"data": "synthetic"},
            "--data synthetic: choose from digits, cifar10, fake; one synthetic batch teaches nothing",
        ),
        ({"scaling": "both"}, "--scaling both: choose from strong, weak"),
        ({"scaling": "weakly"}, "--scaling weakly: .*weak"),
        ({"batch_size": "32,128,..."}, "--batch-size with growth: name each size"),
    ],
)
def test_mistakes_are_named(flags: dict[str, object], message: str) -> None:
    with pytest.raises(DpscopeError, match=message) as error:
        load_train_config(None, flags)
    assert "\n" not in str(error.value)
