"""--help, -h, the groups of options, completion, --open, and the run folder that a TOML file names."""

import webbrowser
from collections.abc import Mapping
from pathlib import Path

import click
import pytest
import typer
from typer.testing import CliRunner

from dpscope.analysis.text.terminal import open_in_browser
from dpscope.launch.cli import app
from dpscope.launch.commands.command import heading_of
from dpscope.launch.planning.run_config import load_config, out_folder
from dpscope.launch.training.cells import load_train_config
from dpscope.profiling.records.settings import HEADINGS
from dpscope.profiling.store.errors import DpscopeError

COMMANDS: Mapping[str, click.Command] = typer.main.get_command(app).commands  # type: ignore[attr-defined]


def output_of(*arguments: str) -> str:
    ended = CliRunner().invoke(app, arguments, env={"COLUMNS": "100"})
    assert ended.exit_code == 0, ended.output
    return ended.output


@pytest.mark.parametrize("command", [(), ("analyze",), ("train",)])
def test_h_prints_what_help_prints(command: tuple[str, ...]) -> None:
    assert output_of(*command, "-h") == output_of(*command, "--help")


def test_options_stand_in_groups() -> None:
    text = output_of("run", "--help")
    headings = [line.rstrip(":") for line in text.splitlines() if line.endswith(":") and not line.startswith(" ")]
    assert headings == [*HEADINGS, "Options"]
    assert text.index("Model and data:") < text.index("--model") < text.index("How much is measured:")
    assert text.split("\nOptions:\n")[1].split() == ["-h,", "--help", "Show", "this", "message", "and", "exit."]


@pytest.mark.parametrize("command", ["run", "train", "equal"])
def test_no_setting_is_without_a_heading(command: str) -> None:
    assert [one.name for one in COMMANDS[command].params if heading_of(one.name or "") not in HEADINGS] == []


def test_a_shell_can_complete() -> None:
    assert "--show-completion" in output_of("--help")


def test_the_page_is_opened_or_its_place_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    opened: list[str] = []

    def opens(address: str) -> bool:
        opened.append(address)
        return True

    monkeypatch.setattr(webbrowser, "open", opens)
    open_in_browser(tmp_path / "report.html")
    assert opened == [(tmp_path / "report.html").as_uri()]
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(webbrowser, "open", lambda _: False)
    open_in_browser(tmp_path / "report.html")
    assert f"open {tmp_path / 'report.html'} manually" in capsys.readouterr().err


def test_a_file_may_name_the_run_folder(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text('out = "runs/mine"\nseed = 3\n')
    assert out_folder(file) == Path("runs/mine")
    assert load_config(file, {}).workload.seed == 3
    file.write_text('out = "runs/mine"\nepochs = 3\n')
    assert load_train_config(file, {}).epochs == 3
    file.write_text("seed = 3\n")
    assert out_folder(file) is None
    assert out_folder(None) is None


@pytest.mark.parametrize(("given", "folder"), [((), "mine"), (("--out", "flag"), "flag")])
def test_the_flag_wins_over_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: tuple[str, ...], folder: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("run.toml").write_text('out = "mine"\nmodel = "resnet8_cifar"\ndevices = "1"\n')
    plan = output_of("run", "--config", "run.toml", "--device", "cpu", "--dry-run", *given)
    assert f"--out {folder} " in plan


@pytest.mark.parametrize("value", ["3", '""', "[1]"])
def test_a_run_folder_in_a_file_is_text(tmp_path: Path, value: str) -> None:
    file = tmp_path / "run.toml"
    file.write_text(f"out = {value}\n")
    with pytest.raises(DpscopeError, match="must be a folder"):
        out_folder(file)
