"""What an attachment is told, and what it refuses before the script starts."""

from pathlib import Path

import pytest

from dpscope.launch.attach.arguments import attachment
from dpscope.launch.attach.jobs import (
    attach_command,
    check_counts,
    default_counts,
    job_environment,
    repeats_there,
    run_jobs,
)
from dpscope.launch.jobs.devices import Devices
from dpscope.profiling.machine.environment import usable_cores
from dpscope.profiling.store.errors import DpscopeError
from tests.helpers.paths import EXAMPLE_RUN


@pytest.fixture
def train(tmp_path: Path) -> str:
    path = tmp_path / "train.py"
    path.write_text("")
    return str(path)


def test_options_after_the_script_are_its_own(tmp_path: Path, train: str) -> None:
    out = str(tmp_path / "run")
    for separator in ([], ["--"]):
        given = attachment(
            ["--out", out, "--steps=20", "--stop-after", *separator, train, "--steps", "7", "--out", "x"]
        )
        assert given.command == (train, "--steps", "7", "--out", "x")
        assert (given.settings.steps, given.settings.stop_after, given.settings.out) == (20, True, tmp_path / "run")
        assert given.settings.script == f"{train} --steps 7 --out x"
    assert attachment(["--out", out, "-m", "json.tool", "--lr", "1"]).command == ("-m", "json.tool", "--lr", "1")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--out", "OUT"], "no script to attach to"),
        (["--out", "OUT", "nowhere.py"], "nowhere.py: no such file"),
        (["TRAIN"], "--out"),
        (["--out", "OUT", "--steps", "0", "TRAIN"], "--steps 0: must be 1 or more"),
        (["--out", "OUT", "--warmup", "1", "TRAIN"], "--warmup 1: must be 2 or more"),
        (["--out", "OUT", "--batch-size", "0", "TRAIN"], "--batch-size 0: must be 1 or more"),
        (["--out", "OUT", "--steps", "many", "TRAIN"], "invalid int value: 'many'"),
        (["--out", "OUT", "--steps-by", "luck", "TRAIN"], "invalid choice: 'luck'"),
        (["--out", "OUT", "--epochs", "1", "TRAIN"], "unrecognized arguments: --epochs 1"),
        (["--out", "RUN", "TRAIN"], "holds a run of `dpscope run`"),
    ],
)
def test_a_mistake_is_one_line(tmp_path: Path, train: str, arguments: list[str], told: str) -> None:
    places = {"OUT": str(tmp_path / "run"), "TRAIN": train, "RUN": str(EXAMPLE_RUN)}
    with pytest.raises(DpscopeError) as error:
        attachment([places.get(one, one) for one in arguments])
    assert told in str(error.value)
    assert "\n" not in str(error.value)


def test_device_counts_that_are_not_there_are_refused() -> None:
    cores = usable_cores()
    check_counts((1, cores), Devices("cpu", None))
    with pytest.raises(DpscopeError, match=f"--devices {cores + 1}: this machine has no GPU and {cores} cores"):
        check_counts((1, cores + 1), Devices("cpu", None))
    with pytest.raises(DpscopeError, match=r"--devices 4: this machine has 2 GPUs"):
        check_counts((4,), Devices("cuda", 2))
    with pytest.raises(DpscopeError, match="--devices 0"):
        check_counts((0, 1), Devices("cuda", 2))
    assert default_counts(Devices("cuda", 6)) == (1, 2, 4, 6)


def test_every_count_has_the_threads_that_torchrun_gives_several_unless_they_are_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert job_environment((1, 2))["OMP_NUM_THREADS"] == "1"
    assert "OMP_NUM_THREADS" not in job_environment((1,))
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert job_environment((1, 2))["OMP_NUM_THREADS"] == "3"


def test_repeats_are_counted_over_all_cells(tmp_path: Path) -> None:
    assert repeats_there(tmp_path / "nothing") == 0
    results = list(EXAMPLE_RUN.glob("cells/*/repeat*/result.json"))
    assert repeats_there(EXAMPLE_RUN) == len(results) > 1


@pytest.mark.process
def test_jobs_run_until_one_fails_and_its_status_is_the_commands(capfd: pytest.CaptureFixture[str]) -> None:
    commands = [["sh", "-c", f"echo {status}; exit {status}"] for status in (0, 7, 0)]
    assert run_jobs(commands) == 7
    assert capfd.readouterr().out == "0\n7\n"
    assert run_jobs([["sh", "-c", "kill -TERM $$"]]) == 128 + 15


def test_the_command_of_a_job_can_be_given_by_hand(tmp_path: Path, train: str) -> None:
    command = attach_command(2, tmp_path / "run", ["--steps", "5"], (train, "--lr", "1"))
    assert command[2:5] == ["dpscope.launch.attach.torchrun", "--standalone", "--nproc-per-node=2"]
    assert attachment(command[command.index("dpscope.launch.attach") + 1 :]).command == (train, "--lr", "1")
