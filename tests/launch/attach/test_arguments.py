"""The arguments of an attachment, and what is refused before the script starts."""

import shlex
from pathlib import Path
from typing import Any

import pytest
import typer

from dpscope.launch.attach.arguments import attachment, check_script
from dpscope.launch.cli import app
from dpscope.profiling.store.errors import DpscopeError
from tests.helpers.paths import EXAMPLE_RUN


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "package").mkdir()
    for name in ("train.py", "package/__init__.py", "package/train.py", "notebook.ipynb"):
        (tmp_path / name).write_text("raise SystemError('it was run')\n")
    (tmp_path / "train.sh").write_text("#!/bin/sh\npython train.py\n")
    (tmp_path / "launch").write_text("#!/usr/bin/env bash\npython train.py\n")
    (tmp_path / "tool").write_text("#!/usr/bin/env python3\n")


@pytest.mark.parametrize("script", ["train.py --steps 7 --out x", "-m json.tool --lr 1"])
@pytest.mark.parametrize("separator", ["", "--"])
def test_options_after_the_script_belong_to_it(tmp_path: Path, script: str, separator: str) -> None:
    found = attachment(shlex.split(f"--out run --steps=20 --stop-after {separator} {script}"))
    settings = found.settings
    assert (found.command, settings.script) == (tuple(script.split()), script)
    assert (settings.steps, settings.stop_after, settings.out) == (20, True, tmp_path / "run")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("--out run", "no script to attach to"),
        ("train.py", "--out"),
        ("--out run --steps 0 train.py", "--steps 0: must be 1 or more"),
        ("--out run --warmup 1 train.py", "--warmup 1: must be 2 or more"),
        ("--out run --steps many train.py", "invalid int value: 'many'"),
        ("--out run --steps-by luck train.py", "invalid choice: 'luck'"),
        ("--out run --epochs 1 train.py", "unrecognized arguments: --epochs 1"),
        (f"--out {EXAMPLE_RUN} train.py", "holds a run of `dpscope run`"),
    ],
)
def test_a_mistake_is_one_line(arguments: str, expected: str) -> None:
    with pytest.raises(DpscopeError) as error:
        attachment(shlex.split(arguments))
    assert expected in str(error.value)
    assert "\n" not in str(error.value)


ALONE = "dpscope starts Python itself; give the script without it: "
OWN_TORCHRUN = "dpscope starts torchrun itself; give the script without it: "


@pytest.mark.parametrize(
    "command", ["train.py", "./train.py --lr 1", "tool", "-m package.train --lr 1", "-m dpscope.launch.cli"]
)
def test_existing_scripts_and_modules_are_accepted_without_running_them(command: str) -> None:
    check_script(shlex.split(command))


@pytest.mark.parametrize(
    ("command", "expected"),
    [
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


def test_a_dpscope_option_after_the_script_is_ambiguous_without_dashes() -> None:
    for late in ("--steps", "--devices=2"):
        with pytest.raises(
            DpscopeError, match=f"{late} stands after train.py: put dpscope's options before the script"
        ):
            parsed(f"--warmup 7 train.py {late} 3")
