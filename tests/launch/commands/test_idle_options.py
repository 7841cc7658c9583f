"""Options that do nothing are refused: each situation of the table, and no rule about an option that does not exist."""

import shutil
from pathlib import Path

import click
import pytest
import typer
from typer.testing import CliRunner

from dpscope.launch.cli import app
from dpscope.launch.commands.idle_options import IDLE
from dpscope.launch.planning.run_config import load_config
from dpscope.launch.training.settings import load_train_config
from dpscope.profiling.store.errors import DpscopeError
from tests.helpers.paths import EXAMPLE_RUN
from tests.helpers.trainings import plain_epochs, write_train_json

COMMANDS: dict[str, click.Command] = typer.main.get_command(app).commands  # type: ignore[attr-defined]
MEASURING = ["--devices", "2"], ["--collectives", "broadcast"], ["--dtype", "float16"], ["--min-bytes", "1KiB"]
MEASURING_TOO = (
    ["--max-bytes", "1MiB"],
    ["--iterations", "3"],
    ["--warmup", "1"],
    ["--timeout", "9"],
    ["--device", "cpu"],
)
JUDGING = ["--link", "10GB/s"], ["--target-efficiency", "0.8"], ["--target-accuracy", "90"]

# command, its other arguments (TRACE, RUN and TRAINED are paths), options that do nothing with them
SITUATIONS: list[tuple[str, list[str], tuple[list[str], ...]]] = [
    ("analyze", ["TRACE"], JUDGING),
    ("analyze", ["RUN"], (["--max-bytes", "1000000"], ["--target-accuracy", "90"])),
    ("analyze", ["RUN", "--format", "csv"], (["--target-efficiency", "0.8"],)),
    ("analyze", ["RUN", "--format", "json"], (["--tables"],)),
    ("analyze", ["RUN", "--tables"], (["--target-efficiency", "0.8"],)),
    ("analyze", ["TRAINED"], (*JUDGING[:2], ["--max-bytes", "1000000"])),
    ("tensorboard", ["TRAINED"], (["--link", "10GB/s"],)),
    ("calibrate", ["--from-nccl-tests", "TRACE"], (*MEASURING, *MEASURING_TOO)),
    ("calibrate", [], (["--in-place"],)),
    ("compare", ["TRAINED", "TRAINED"], (["--fail-over", "5%"],)),
    ("train", ["--wandb-online"], (["--wandb"],)),
    *(
        (command, ["--data", "digits"], (["--data-dir", "x"], ["--download"], ["--samples", "9"]))
        for command in ("run", "train", "equal")
    ),
    ("run", ["--workers-total", "2"], (["--workers", "1"],)),
    ("run", ["--device", "cpu"], (["--pin-memory"],)),
    ("train", ["--device", "cpu", "--workers-total", "2"], (["--workers", "1"], ["--pin-memory"])),
    ("train", ["--data", "fake"], (["--augment"], ["--data-dir", "x"])),
    ("train", ["--epochs", "3"], (["--gamma", "0.2"], ["--milestones", "3,5"], ["--learning-rate-scaling", "linear"])),
]


@pytest.mark.parametrize(
    ("command", "arguments", "option"),
    [(command, arguments, option) for command, arguments, options in SITUATIONS for option in options],
)
def test_an_option_that_does_nothing_is_refused(
    command: str, arguments: list[str], option: list[str], tmp_path: Path
) -> None:
    trace = tmp_path / "rank0.json"
    trace.write_text("{}")
    trained = write_train_json(tmp_path / "trained", plain_epochs("single", 1, 0, [80.0], [4.0]))
    run = tmp_path / "run"
    run.mkdir()
    shutil.copy(EXAMPLE_RUN / "manifest.json", run)
    places = {"TRACE": str(trace), "RUN": str(run), "TRAINED": str(trained)}
    before = sorted(tmp_path.rglob("*"))
    line = [command, *(places.get(one, one) for one in arguments), *option]
    ended = CliRunner().invoke(
        app, line if command not in ("run", "train") else [*line, "--out", str(tmp_path / "out")]
    )
    assert isinstance(ended.exception, DpscopeError), ended.output
    said = str(ended.exception)
    assert said.startswith(option[0])
    assert said.endswith("omit it")
    assert "\n" not in said
    assert sorted(tmp_path.rglob("*")) == before


def test_every_rule_is_about_options_that_exist_and_is_tested() -> None:
    tested = {(command, option[0]) for command, _, options in SITUATIONS for option in options}
    for command, rules in IDLE.items():
        flags = {parameter.name: parameter.opts[0] for parameter in COMMANDS[command].params}
        for rule in rules:
            for name in rule.parameters:
                assert (command, flags[name]) in tested


def test_options_that_do_something_are_taken() -> None:
    assert load_config(None, {"data": "cifar10", "data_dir": "x", "download": True}).data_dir == "x"
    assert load_config(None, {"data": "fake", "samples": 9, "workers": 1}).samples == 9
    taken = load_train_config(
        None, {"milestones": "2", "gamma": 0.2, "scaling": "weak", "learning_rate_scaling": "sqrt"}
    )
    assert (taken.gamma, taken.milestones) == (0.2, (2,))


def test_a_file_may_serve_several_commands(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text('data_dir = "x"\nsamples = 9\n')
    assert load_config(tmp_path / "run.toml", {"data": "digits"}).data_dir == "x"
