"""--help, -h, the groups of options, completion, --open, and the run folder that a TOML file
names.
"""

import re
import shlex
import webbrowser
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
import pytest
import typer
from typer.testing import CliRunner

from dpscope.analysis.text.terminal import open_in_browser
from dpscope.launch.commands.help_text import heading_of
from dpscope.launch.contents import GROUPS, app
from dpscope.launch.learning.train_plan import load_train_config
from dpscope.launch.planning.run_config import load_config, out_folder
from dpscope.profiling.records.settings import HEADINGS
from dpscope.profiling.store.errors import DpscopeError

COMMANDS: Mapping[str, click.Command] = typer.main.get_command(app).commands  # type: ignore[attr-defined]


def output_of(*arguments: str) -> str:
    ended = CliRunner().invoke(app, arguments, env={"COLUMNS": "100"})
    assert ended.exit_code == 0, ended.output
    return ended.output


def test_help_groups_options_and_h_prints_the_same() -> None:
    for command in ((), ("analyze",), ("train",)):
        assert output_of(*command, "-h") == output_of(*command, "--help")
    assert "--show-completion" in output_of("--help")
    text = output_of("run", "--help-all")
    headings = [
        line.rstrip(":")
        for line in text.splitlines()
        if line.endswith(":") and not line.startswith(" ")
    ]
    assert headings == ["Examples", *HEADINGS, "Options", "Exit status"]
    assert (
        text.index("Model and data:")
        < text.index("\n  --model")
        < text.index("How much is measured:")
    )
    options = text.split("\nOptions:\n")[1].split("\n\n")[0]
    assert options.split() == ["-h,", "--help", "Show", "this", "message", "and", "exit."]
    for name in ("run", "train", "equal"):  # no setting is without a heading
        assert [
            one.name for one in COMMANDS[name].params if heading_of(one.name or "") not in HEADINGS
        ] == []


def test_the_commands_are_grouped_and_two_are_named_first() -> None:
    text = output_of("--help")
    headings = re.findall(r"^(\S.*):$", text, re.MULTILINE)
    assert headings == ["Start here", *list(GROUPS)[1:], "Options"]
    listed = [one for one in re.findall(r"^  (\w+)  ", text, re.MULTILINE) if one in COMMANDS]
    assert listed[:2] == ["run", "attach"]
    assert sorted(listed) == sorted(COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_values_are_written_as_words_and_limits_of_reading_measure_nothing(command: str) -> None:
    text = output_of(command, "--help-all")
    assert not re.search(r"<|list\[|\bstr\b|\bint\b|Path\b|\{", text.partition("Examples:")[2])
    assert not re.search(r"[{<]", text.splitlines()[0])
    measured = text.partition("How much is measured:\n")[2].partition("\n\n")[0]
    assert "--max-events" not in measured
    assert ("--max-bytes" in measured) == (command == "calibrate")


@pytest.mark.parametrize("command", ["run", "train"])
def test_help_of_a_long_list_shows_usual_options_and_counts_the_others(command: str) -> None:
    text, everything = output_of(command, "--help"), output_of(command, "--help-all")
    assert len(text.splitlines()) <= 42
    shown, every = (
        {word for word in one.split() if word.startswith("--")} for one in (text, everything)
    )
    assert shown - {"--help-all"} <= every
    found = re.search(r"^(\d+) more options: \w+ \w+ --help-all$", text, re.MULTILINE)
    assert found is not None
    described: Any = COMMANDS[command]
    assert int(found[1]) == len(described.params) - len(described.shown.usual.split())


@pytest.mark.parametrize("command", COMMANDS)
def test_examples_of_help_are_commands_whose_options_have_effects(command: str) -> None:
    for example in COMMANDS[command].shown.examples:  # type: ignore[attr-defined]
        words = shlex.split(example, comments=True)
        with COMMANDS[command].make_context(command, words) as context:
            assert context.params
            COMMANDS[command].refuse_idle(context)  # type: ignore[attr-defined]


def test_the_page_is_opened_or_its_place_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "report.html"
    monkeypatch.setattr(webbrowser, "open", lambda address: address == page.as_uri())
    open_in_browser(page)
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(webbrowser, "open", lambda _: False)
    open_in_browser(page)
    assert f"open {page} manually" in capsys.readouterr().err


def test_a_file_may_name_the_run_folder_and_the_flag_wins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "run.toml"
    file.write_text('out = "runs/mine"\nseed = 3\n')
    assert out_folder(file) == Path("runs/mine")
    assert load_config(file, {}).workload.seed == 3
    file.write_text('out = "runs/mine"\nepochs = 3\n')
    assert load_train_config(file, {}).epochs == 3
    file.write_text("seed = 3\n")
    assert out_folder(file) is None
    assert out_folder(None) is None
    for value in ("3", '""', "[1]"):
        file.write_text(f"out = {value}\n")
        with pytest.raises(DpscopeError, match="must be a folder"):
            out_folder(file)
    monkeypatch.chdir(tmp_path)
    file.write_text('out = "mine"\nmodel = "resnet8_cifar"\ndevices = "1"\n')
    for given, folder in (((), "mine"), (("--out", "flag"), "flag")):
        plan = output_of("run", "--config", "run.toml", "--device", "cpu", "--dry-run", *given)
        assert f'"out":"{folder}"' in plan


def test_defaults_that_a_command_chooses_are_shown() -> None:
    """The device counts of equal have their option in common with its layouts, which are none."""
    described: Any = COMMANDS
    names = ("attach", "calibrate", "equal")
    shown = {name: described[name].defaults()["--devices"] for name in names}
    assert shown == {
        "attach": "all GPUs in powers of two; 1,2 on the CPU",
        "calibrate": "2, 4, ... and all GPUs; 2 on the CPU",
        "equal": "2",
    }
    assert COMMANDS["train"].defaults()["--workers"] == "0; 2 for other data than digits"  # type: ignore[attr-defined]
