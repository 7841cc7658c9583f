"""The arguments of an attachment, and what is refused before the script starts."""

import shlex
from pathlib import Path
from typing import Any

import pytest
import typer

from dpscope.launch.attach.arguments import attachment, check_script
from dpscope.launch.contents import app
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
    found = attachment(
        shlex.split(f"--out run --steps=20 --stop-after --record-collectives {separator} {script}")
    )
    settings = found.settings
    assert (found.command, settings.script) == (tuple(script.split()), script)
    assert (settings.steps, settings.stop_after, settings.out) == (20, True, tmp_path / "run")
    assert settings.record_collectives
    assert not attachment(["--out", "run", *shlex.split(script)]).settings.record_collectives


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("--out run", "no script"),
        ("train.py", "--out"),
        ("--out run --steps 0 train.py", "--steps 0: must be 1 or more"),
        ("--out run --warmup 1 train.py", "--warmup 1: must be 2 or more"),
        ("--out run --steps many train.py", "invalid int value: 'many'"),
        ("--out run --steps-by luck train.py", "invalid choice: 'luck'"),
        ("--out run --epochs=1 train.py", "unrecognized arguments: --epochs"),
        (f"--out {EXAMPLE_RUN} train.py", "holds a run of `dpscope run`"),
    ],
)
def test_a_mistake_is_one_line(arguments: str, expected: str) -> None:
    with pytest.raises(DpscopeError) as error:
        attachment(shlex.split(arguments))
    assert expected in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "command",
    ["train.py", "./train.py --lr 1", "tool", "-m package.train --lr 1", "-m dpscope.launch.cli"],
)
def test_existing_scripts_and_modules_are_accepted_without_running_them(command: str) -> None:
    check_script(shlex.split(command))


@pytest.mark.parametrize(
    ("command", "named"),
    [
        ("", "no script"),
        ("trian.py --lr 1", "trian.py"),
        (".", "."),
        ("--epochs 1 train.py", "--epochs"),
        ("DEBUG=1 train.py", "DEBUG=1"),
        ("srun python train.py", "srun"),
        ("-m torch.distributed.run --nnodes=2 train.py", "-m torch.distributed.run"),
        ("./train.sh", "./train.sh"),
        ("launch", "launch"),
        ("notebook.ipynb", "notebook.ipynb"),
        ("-m", "-m"),
        ("-m pakage.train", "-m pakage.train"),
        ("-m package/train.py", "-m package/train.py"),
    ],
)
def test_wrong_first_words_get_one_line(command: str, named: str) -> None:
    with pytest.raises(DpscopeError) as error:
        check_script(shlex.split(command))
    expected = f"{named.removeprefix('./')}: not a Python script here, nor -m and a module; name the script that trains first"
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
            DpscopeError,
            match=f"{late} stands after train.py: put dpscope's options before the script",
        ):
            parsed(f"--warmup 7 train.py {late} 3")
