"""The arguments of an attachment, and what is refused before the script starts."""

import shlex
from pathlib import Path
from typing import Any

import pytest
import typer

from dpscope.launch.attach.arguments import attachment, check_script
from dpscope.launch.attach.jobs import (
    attach_command,
    check_counts,
    default_counts,
    job_environment,
    repeats_there,
    run_jobs,
)
from dpscope.launch.cli import app
from dpscope.launch.jobs.devices import Devices
from dpscope.profiling.machine.environment import usable_cores
from dpscope.profiling.store.errors import DpscopeError
from tests.helpers.paths import EXAMPLE_RUN


@pytest.fixture
def train(tmp_path: Path) -> str:
    path = tmp_path / "train.py"
    path.write_text("")
    return str(path)


def test_options_after_the_script_belong_to_it(tmp_path: Path, train: str) -> None:
    out = str(tmp_path / "run")
    for separator in ([], ["--"]):
        options = ["--out", out, "--steps=20", "--stop-after", *separator]
        parsed_job = attachment([*options, train, "--steps", "7", "--out", "x"])
        assert parsed_job.command == (train, "--steps", "7", "--out", "x")
        settings = parsed_job.settings
        assert (settings.steps, settings.stop_after, settings.out) == (20, True, tmp_path / "run")
        assert settings.script == f"{train} --steps 7 --out x"
    assert attachment(["--out", out, "-m", "json.tool", "--lr", "1"]).command == ("-m", "json.tool", "--lr", "1")


@pytest.mark.parametrize(
    ("arguments", "expected"),
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
def test_a_mistake_is_one_line(tmp_path: Path, train: str, arguments: list[str], expected: str) -> None:
    paths = {"OUT": str(tmp_path / "run"), "TRAIN": train, "RUN": str(EXAMPLE_RUN)}
    with pytest.raises(DpscopeError) as error:
        attachment([paths.get(one, one) for one in arguments])
    assert expected in str(error.value)
    assert "\n" not in str(error.value)


def test_device_counts_beyond_the_machine_are_refused() -> None:
    cores = usable_cores()
    check_counts((1, cores), Devices("cpu", None))
    with pytest.raises(DpscopeError, match=f"--devices {cores + 1}: this machine has no GPU and {cores} cores"):
        check_counts((1, cores + 1), Devices("cpu", None))
    with pytest.raises(DpscopeError, match=r"--devices 4: this machine has 2 GPUs"):
        check_counts((4,), Devices("cuda", 2))
    with pytest.raises(DpscopeError, match="--devices 0"):
        check_counts((0, 1), Devices("cuda", 2))
    assert default_counts(Devices("cuda", 6)) == (1, 2, 4, 6)


def test_every_count_has_one_thread_per_process_unless_the_user_sets_it(monkeypatch: pytest.MonkeyPatch) -> None:
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
def test_jobs_run_until_one_fails_with_its_exit_status(capfd: pytest.CaptureFixture[str]) -> None:
    commands = [["sh", "-c", f"echo {status}; exit {status}"] for status in (0, 7, 0)]
    assert run_jobs(commands) == 7
    assert capfd.readouterr().out == "0\n7\n"
    assert run_jobs([["sh", "-c", "kill -TERM $$"]]) == 128 + 15


def test_the_command_of_a_job_works_by_hand(tmp_path: Path, train: str) -> None:
    command = attach_command(2, tmp_path / "run", ["--steps", "5"], (train, "--lr", "1"))
    assert command[2:5] == ["dpscope.launch.attach.torchrun", "--standalone", "--nproc-per-node=2"]
    assert attachment(command[command.index("dpscope.launch.attach") + 1 :]).command == (train, "--lr", "1")


ALONE = "dpscope starts Python itself; give the script without it: "
OWN_TORCHRUN = "dpscope starts torchrun itself; give the script without it: "


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "package").mkdir()
    for name in ("train.py", "package/__init__.py", "package/train.py", "notebook.ipynb"):
        (tmp_path / name).write_text("raise SystemError('it was run')\n")
    (tmp_path / "train.sh").write_text("#!/bin/sh\npython train.py\n")
    (tmp_path / "launch").write_text("#!/usr/bin/env bash\npython train.py\n")
    (tmp_path / "tool").write_text("#!/usr/bin/env python3\n")


@pytest.mark.parametrize(
    "command", ["train.py", "./train.py --lr 1", "tool", "-m package.train --lr 1", "-m dpscope.launch.cli"]
)
def test_existing_scripts_and_modules_are_accepted_without_running_them(command: str) -> None:
    check_script(shlex.split(command))


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("", "no script to attach to: name one, such as dpscope attach --out runs/mine -- train.py"),
        ("nowhere.py", "nowhere.py: no such file; name the Python script that trains"),
        (".", ".: is a folder; name the Python script"),
        ("train", "train: no such file; did you mean train.py?"),
        ("./trian.py", "./trian.py: no such file; did you mean train.py?"),
        ("package.train", "package.train: no such file; for a module write -m package.train"),
        ("--epochs 1 train.py", "--epochs: the script comes first and its options after it"),
        ("DEBUG=1 train.py", "DEBUG=1: a variable of the environment goes before dpscope or torchrun"),
        ("python train.py --lr 1", f"python: {ALONE}train.py --lr 1"),
        ("/usr/bin/python3.12 -u -X dev -m package.train", f"/usr/bin/python3.12: {ALONE}-m package.train"),
        ("python -c pass", "python: dpscope attaches to a script in a file, or to a module by -m; name it without python"),
        ("torchrun train.py", f"torchrun: {OWN_TORCHRUN}train.py; or attach under your own torchrun: torchrun -m dpscope"),
        (
            "torchrun --nproc-per-node 2 train.py --tag 'a b'",
            "torchrun --nproc-per-node 2 -m dpscope.launch.attach --out runs/mine train.py --tag 'a b'",
        ),
        (
            "python -m torch.distributed.run --nnodes=2 -m package.train",
            f"{OWN_TORCHRUN}-m package.train; or attach under your own torchrun: torchrun --nnodes=2 -m dpscope.launch.attach",
        ),
        ("accelerate launch train.py", "accelerate: dpscope starts scripts by torchrun"),
        ("./train.sh", "train.sh: is not a Python script"),
        ("launch", "launch: is not a Python script"),
        ("bash -e train.sh", "train.sh: is not a Python script"),
        ("sh -c 'python train.py'", "sh: is not a Python script"),
        ("notebook.ipynb", "notebook.ipynb: a notebook; save it as a script first: jupyter nbconvert --to script notebook.ipynb"),
        ("-m", "-m: no module to attach to"),
        ("-m package.trian", "-m package.trian: no such module in "),
        ("-m package", "-m package: is a package without a __main__"),
        ("-m ./package/train.py", "takes a module's name, such as -m package.train"),
    ],
)  # fmt: skip
def test_an_invalid_command_is_one_line_with_an_alternative(command: str, expected: str) -> None:
    with pytest.raises(DpscopeError) as error:
        check_script(shlex.split(command))
    assert expected in str(error.value)
    assert "\n" not in str(error.value)


def parsed(text: str) -> Any:
    command = typer.main.get_command(app).commands["attach"]  # type: ignore[attr-defined]
    return command.make_context("attach", shlex.split(text)).params


@pytest.mark.parametrize(
    ("text", "script"),
    [
        ("--steps 20 -- train.py --steps 3 -- 4", "train.py --steps 3 -- 4"),
        ("--steps 20 train.py --epochs 3", "train.py --epochs 3"),
        ("--steps 20 train.py -- --steps 3", "train.py --steps 3"),
        ("--steps 20 -m package.train --steps 3", "-m package.train --steps 3"),
        ("--steps 20 -- -m package.train -m x", "-m package.train -m x"),
    ],
)
def test_dpscopes_options_end_where_the_script_begins(text: str, script: str) -> None:
    found = parsed(text)
    assert (found["steps"], found["script"]) == (20, shlex.split(script))


@pytest.mark.parametrize("late", ["--steps", "--out", "--devices=2"])
def test_a_dpscope_option_after_the_script_is_ambiguous_without_dashes(late: str) -> None:
    with pytest.raises(DpscopeError, match=f"{late} stands after train.py: put dpscope's options before the script"):
        parsed(f"--warmup 7 train.py {late} 3")
