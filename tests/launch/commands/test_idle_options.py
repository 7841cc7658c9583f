"""Options that do nothing are refused: each situation of the table, and no rule about an option that does not exist."""

import shutil
from collections.abc import Mapping
from pathlib import Path

import click
import pytest
import typer
from typer.testing import CliRunner

from dpscope.launch.cli import app
from dpscope.launch.commands.command import Command
from dpscope.launch.planning.run_config import flag_name, load_config
from dpscope.launch.training.cells import load_train_config
from dpscope.profiling.records.config import RunConfig
from dpscope.profiling.records.settings import declarations
from dpscope.profiling.records.training import TrainConfig
from dpscope.profiling.store.errors import DpscopeError
from tests.helpers.paths import EXAMPLE_RUN
from tests.helpers.trainings import plain_epochs, write_train_json

COMMANDS: Mapping[str, click.Command] = typer.main.get_command(app).commands  # type: ignore[attr-defined]
MEASURING = ["--devices", "2"], ["--collectives", "broadcast"], ["--dtype", "float16"], ["--min-bytes", "1KiB"]
MEASURING_TOO = (
    ["--max-bytes", "1MiB"],
    ["--iterations", "3"],
    ["--warmup", "1"],
    ["--timeout", "9"],
    ["--device", "cpu"],
)
JUDGING = ["--link", "10GB/s"], ["--target-efficiency", "0.8"], ["--target-accuracy", "90"]

OF_DDP = (
    ["--comm-hook", "fp16"],
    ["--nccl-engine", "legacy"],
    ["--bucket-mb", "5"],
    ["--ddp-args", "batched_grad_copy=true"],
    ["--overlap", "off"],
    ["--gradient-as-bucket-view"],
    ["--static-graph"],
    ["--broadcast-buffers", "off"],
)

# command, its other arguments (TRACE, RUN and TRAINED are paths), options that do nothing with them
SITUATIONS: list[tuple[str, list[str], tuple[list[str], ...]]] = [
    ("analyze", ["TRACE"], JUDGING[1:]),
    ("analyze", ["TRACE", "--format", "csv"], (JUDGING[0], ["--calibration", "calibration.json"])),
    ("analyze", ["TRACE", "--format", "csv"], (["--nccl-log", "nccl.log"], ["--flops", "1T"])),
    ("analyze", ["RUN", "--format", "csv"], (["--nccl-log", "nccl.log"],)),
    ("analyze", ["RUN", "--tables"], (["--nccl-log", "nccl.log"], ["--flops", "1T"])),
    ("analyze", ["RUN", "--format", "json"], (["--report", "x"],)),
    ("analyze", ["RUN", "--tables"], (["--report", "x"],)),
    ("analyze", ["RUN"], (["--max-bytes", "1000000"], ["--max-events", "1000000"], ["--target-accuracy", "90"])),
    ("analyze", ["RUN", "--format", "csv"], (["--target-efficiency", "0.8"],)),
    ("analyze", ["RUN", "--format", "json"], (["--tables"],)),
    ("analyze", ["RUN", "--tables"], (["--target-efficiency", "0.8"],)),
    (
        "analyze",
        ["TRAINED"],
        (
            *JUDGING[:2],
            ["--max-bytes", "1000000"],
            ["--max-events", "1000000"],
            ["--calibration", "calibration.json"],
            ["--nccl-log", "nccl.log"],
            ["--flops", "1T"],
            ["--report", "x"],
        ),
    ),
    ("analyze", ["TRAINED", "--format", "csv"], (["--target-accuracy", "90"],)),
    ("analyze", ["TRAINED", "--tables"], (["--target-accuracy", "90"],)),
    ("analyze", ["TRACE"], (["--tables"], ["--verbose"], ["--quiet"], ["--figures", "svg"], ["--open"])),
    ("analyze", ["RUN", "--format", "json"], (["--verbose"], ["--quiet"], ["--figures", "svg"], ["--open"])),
    ("analyze", ["RUN", "--tables"], (["--verbose"], ["--quiet"], ["--figures", "svg"], ["--open"])),
    ("analyze", ["RUN", "--quiet"], (["--verbose"],)),
    ("merge", ["TRACE", "-o", "merged.json"], (["--cell", "ddp-d2-b2"], ["--repeat", "1"])),
    ("whatif", ["TABLE", "--measured", "TABLE"], (["--per-node", "8"], ["--batch-size", "32"])),
    (
        "whatif",
        ["TABLE", "--devices", "8"],
        (
            *(
                ["--cell", "ddp-d2-b8"],
                ["--link", "1Gb/s"],
                ["--inter", "1Gb/s"],
                ["--intra", "1Gb/s"],
                ["--bucket-mb", "5"],
                ["--comm-hook", "fp16"],
            ),
            *(["--accumulate", "2"], ["--overlap", "off"], ["--strategy", "dp"], ["--faster", "2"], ["--jitter", "3%"]),
            *(["--solve", "strategy"], ["--need", "efficiency=0.9"], ["--trace", "x.json"], ["--figure", "x.png"]),
            *(
                ["--base-devices", "2"],
                ["--base-batch-size", "8"],
                ["--base-bucket-mb", "5"],
            ),
        ),
    ),
    ("whatif", ["TRACE"], (["--measured", "TABLE"], ["--cell", "ddp-d2-b8"], ["--need", "efficiency=0.9"])),
    ("whatif", ["TRACE", "--solve", "strategy"], (["--need", "efficiency=0.9"],)),
    ("whatif", ["RUN"], (["--base-devices", "2"], ["--base-batch-size", "8"], ["--gradient-bytes", "8"])),
    ("analyze", ["RUN"], (["--topology", "topology.conf"], ["--hide-hosts"])),
    ("analyze", ["TRACE", "--format", "csv"], (["--topology", "topology.conf"], ["--hide-hosts"])),
    (
        "analyze",
        ["PARTIAL"],
        (
            ["--max-bytes", "1000000"],
            ["--max-events", "1000000"],
        ),
    ),
    (
        "reduce",
        ["PARTIAL", "-o", "x.dpscope"],
        (["--share", "1/2"], ["--jobs", "2"], ["--max-bytes", "1000000"], ["--max-events", "1000000"]),
    ),
    ("bundle", ["RUN", "--list"], (["--output", "b.zip"],)),
    (
        "run",
        ["--dry-run"],
        (["--verbose"], ["--quiet"], ["--open"], ["--link", "100Gb/s"], ["--target-efficiency", "0.8"]),
    ),
    ("run", ["--quiet"], (["--verbose"],)),
    ("attach", ["--quiet"], (["--verbose"],)),
    ("run", ["--strategy", "single"], (["--link", "100Gb/s"], ["--target-efficiency", "0.8"], ["--calibrate"])),
    (
        "run",
        ["--devices", "1"],
        (["--link", "100Gb/s"], ["--target-efficiency", "0.8"], ["--scaling", "strong"], ["--scaling", "both"]),
    ),
    (
        "run",
        ["--data", "synthetic"],
        (["--workers", "1"], ["--workers-total", "2"], ["--pin-memory"], ["--transforms", "per-image"]),
    ),
    ("train", ["--dry-run"], (["--target-accuracy", "90"], ["--wandb"], ["--wandb-online"])),
    ("train", ["--devices", "1"], (["--scaling", "weak"],)),
    ("run", ["--strategy", "single,fsdp"], (["--ddp-alone"], ["--bucket-mb", "5"])),
    ("run", ["--devices", "2"], (["--ddp-alone"],)),
    *((command, ["--strategy", "single,dp"], OF_DDP) for command in ("run", "train")),
    ("tensorboard", ["TRAINED"], (["--link", "10GB/s"],)),
    ("tensorboard", ["RUN"], (["--out", "x"],)),
    ("calibrate", ["--from-nccl-tests", "TRACE"], (*MEASURING, *MEASURING_TOO)),
    ("calibrate", [], (["--in-place"], ["--format", "json"])),
    ("calibrate", ["--predict", "64", "RUN"], (*MEASURING, *MEASURING_TOO, ["--link", "100Gb/s"], ["--out", "x"])),
    ("compare", ["TRAINED", "TRAINED"], (["--fail-over", "5%"],)),
    ("compare", ["RUN", "RUN"], (["--by", "commit"],)),
    ("train", ["--wandb-online"], (["--wandb"],)),
    ("run", ["--wandb-online"], (["--wandb"],)),
    ("run", ["--dry-run"], (["--wandb"], ["--wandb-online"])),
    *(
        (command, ["--data", "digits"], (["--data-dir", "x"], ["--download"], ["--samples", "9"]))
        for command in ("run", "train", "equal")
    ),
    ("run", ["--data", "fake", "--workers-total", "2"], (["--workers", "1"],)),
    ("run", ["--data", "fake", "--device", "cpu"], (["--pin-memory"],)),
    ("equal", ["--data", "synthetic"], (["--workers", "1"],)),
    ("run", ["--detect", "5%"], (["--repeats", "4"],)),
    ("run", [], (["--detect-limit", "60"],)),
    ("run", ["--detect", "5%", "--dry-run"], (["--detect-limit", "60"],)),
    ("train", ["--device", "cpu", "--workers-total", "2"], (["--workers", "1"], ["--pin-memory"])),
    ("train", ["--data", "fake"], (["--augment"], ["--data-dir", "x"], ["--transforms", "per-image"])),
    *(
        (command, [], (["--node-rank", "1"], ["--rendezvous", "host0:29500"], ["--wait-for-nodes", "60"]))
        for command in ("run", "calibrate", "train", "equal")
    ),
    *(
        (
            command,
            ["--nodes", "2", "--dry-run"],
            (["--node-rank", "1"], ["--rendezvous", "host0:29500"], ["--wait-for-nodes", "60"]),
        )
        for command in ("run", "train")
    ),
    ("calibrate", ["--from-nccl-tests", "TRACE"], (["--nodes", "2"],)),
    ("train", ["--epochs", "3"], (["--gamma", "0.2"], ["--learning-rate-scaling", "linear"])),
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
    partial = tmp_path / "n0.dpscope"
    partial.touch()
    table = tmp_path / "steps.csv"
    table.write_text("ranks,step_ms\n1,100\n2,104\n4,105\n")
    places = {
        "TRACE": str(trace),
        "RUN": str(run),
        "TRAINED": str(trained),
        "TABLE": str(table),
        "PARTIAL": str(partial),
    }
    before = sorted(tmp_path.rglob("*"))
    line = [command, *(places.get(one, one) for one in (*arguments, *option))]
    out = ["--out", str(tmp_path / "out")]
    last = {"run": out, "train": out, "attach": ["--", str(trace)]}.get(command, [])
    ended = CliRunner().invoke(app, [*line, *last])
    assert isinstance(ended.exception, DpscopeError), ended.output
    message = str(ended.exception)
    assert message.startswith(option[0])
    assert message.endswith("omit it")
    assert "\n" not in message
    assert sorted(tmp_path.rglob("*")) == before


def test_every_rule_is_about_options_that_exist_and_is_tested() -> None:
    tested = {(command, option[0]) for command, _, options in SITUATIONS for option in options}
    for command in COMMANDS.values():
        assert isinstance(command, Command)
        flags = {parameter.name: parameter.opts[0] for parameter in command.params}
        assert {(command.name, flags[name]) for rule in command.idle for name in rule.parameters} <= tested


def test_every_rule_of_a_setting_is_tested() -> None:
    tested = {option[0] for _, _, options in SITUATIONS for option in options}
    declared = {**declarations(RunConfig), **declarations(TrainConfig)}
    assert {flag_name(name) for name, one in declared.items() if one.setting.idle is not None} <= tested


def test_options_that_do_something_are_taken() -> None:
    assert load_config(None, {"data": "cifar10", "data_dir": "x", "download": True}).workload.data_dir == "x"
    assert load_config(None, {"data": "fake", "samples": 9, "workers": 1}).workload.samples == 9
    taken = load_train_config(
        None, {"milestones": "2", "gamma": 0.2, "scaling": "weak", "learning_rate_scaling": "sqrt"}
    )
    assert (taken.gamma, taken.milestones) == (0.2, (2,))


def test_a_file_may_serve_several_commands(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text('data_dir = "x"\nsamples = 9\n')
    assert load_config(tmp_path / "run.toml", {"data": "digits"}).workload.data_dir == "x"
