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
    ("analyze", ["TRACE", "--format", "csv"], (["--nccl-log", "nccl.log"],)),
    ("analyze", ["RUN", "--format", "csv"], (["--nccl-log", "nccl.log"],)),
    ("analyze", ["RUN", "--tables"], (["--nccl-log", "nccl.log"],)),
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

WHAT = "it says what is read or where it is written"
SPANNED = "so many nodes take part; more than any cell spans are refused"
LEARNS = "every training depends on it"
# Parameters that have an effect wherever the command gets as far as to use them, and why.
ALWAYS: dict[str, dict[str, str]] = {
    "run": {
        "nodes": SPANNED,
        **dict.fromkeys(
            ("strategy", "devices", "batch_size", "accumulate", "compile"),
            "they make the cells; what makes none is an error",
        ),
        **dict.fromkeys(("model", "data", "amp", "lr", "momentum", "weight_decay", "seed"), "every step depends on it"),
        **dict.fromkeys(("warmup", "steps", "epochs", "traced_steps"), "so much is measured of every cell"),
        "detect": "it chooses the repeats",
        "published": "the manifest keeps what of it is of the run's cells, and --tables says where that is nothing",
        "timeout": "every job has this limit",
        "device": "it chooses the devices, also where auto would choose the same",
        "config": WHAT,
        "out": WHAT,
        "fresh": "measured again; where nothing was measured there is nothing to lose, which a script cannot know",
        "dry_run": "nothing is started",
    },
    "attach": {
        "script": WHAT,
        "out": WHAT,
        **dict.fromkeys(("devices", "repeats"), "so many jobs are started"),
        **dict.fromkeys(("warmup", "steps", "traced_steps"), "so much is measured of every job"),
        "steps_by": "it says what a step is",
        "batch_size": "it names the cell and counts the samples",
        "quiet": "so much is printed",
        "work_folders": "every job runs in a folder of it",
        "nccl_log": "it is read for the report that every attached script gets",
        "stop_after": "the script ends sooner; one that would end then anyway nobody can know beforehand",
    },
    "analyze": {"paths": WHAT, "output_format": "it says what is printed"},
    "compare": {
        "paths": WHAT,
        "output_format": "it says what is printed",
        "force": "a permission: whether it is needed is known when both runs are read",
    },
    "merge": {
        "paths": WHAT,
        "output": WHAT,
        "max_bytes": "every trace is read within it",
        "max_events": "every trace is read within it",
    },
    "calibrate": {
        "from_nccl_tests": "logs are read, and needed",
        "predict": WHAT,
        "logs": "refused without --from-nccl-tests and --predict",
    },
    "tensorboard": {"paths": WHAT, "host": "it is served there", "port": "it is served there"},
    "estimate": {
        "table": WHAT,
        "claims": "values are audited in every format",
        "output_format": "it says what is printed",
    },
    "whatif": {
        "paths": WHAT,
        "devices": "it says what to predict; of a table that or --measured does, and both are refused",
        "output_format": "it says what is printed",
    },
    "train": {
        "nodes": SPANNED,
        "milestones": "one beyond the last epoch is warned of: more epochs may go on from there",
        **dict.fromkeys(
            ("strategy", "devices", "batch_size", "seeds", "accumulate", "compile"),
            "they make the trainings; what makes none is an error",
        ),
        **dict.fromkeys(("model", "data", "epochs", "lr", "warmup_epochs", "momentum", "weight_decay"), LEARNS),
        **dict.fromkeys(("label_smoothing", "amp"), LEARNS),
        "eval_batch_size": "every epoch is tested so",
        "workers_total": "every data set of a training is loaded; synthetic data is refused",
        "checkpoint_steps": "every training saves so",
        **dict.fromkeys(("timeout", "max_restarts"), "every training has this limit"),
        "device": "it chooses the devices, also where auto would choose the same",
        "config": WHAT,
        "out": WHAT,
        "resume_from": "what it names must be there",
        "fresh": "trained again; where nothing was trained there is nothing to lose, which a script cannot know",
        "dry_run": "nothing is started",
    },
    "reduce": {"paths": WHAT, "output": WHAT},
    "bundle": {"run": WHAT, "list_only": "nothing is written"},
    "equal": {
        "nodes": SPANNED,
        **dict.fromkeys(
            ("strategy", "devices", "batch_size", "steps", "compile"), "they make the trainings that are compared"
        ),
        **dict.fromkeys(("model", "data", "lr", "momentum", "weight_decay", "seed", "dtype"), LEARNS),
        **dict.fromkeys(("freeze_batch_norm", "sync_batch_norm"), "they change how batch norm trains, or are refused"),
        "timeout": "every job has this limit",
        "device": "it chooses the devices, also where auto would choose the same",
        "output_format": "it says what is printed",
        "out": WHAT,
    },
}


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


def test_every_option_of_every_command_is_in_a_situation_or_always_has_an_effect() -> None:
    situations = {(command, option[0]) for command, _, options in SITUATIONS for option in options}
    unsaid, twice = [], []
    for command, click_command in COMMANDS.items():
        for parameter in click_command.params:
            in_situation = any((command, flag) in situations for flag in parameter.opts)
            always = parameter.name in ALWAYS[command]
            unsaid += [(command, parameter.name)] if not in_situation and not always else []
            twice += [(command, parameter.name)] if in_situation and always else []
    assert unsaid == [], "say when it does nothing (SITUATIONS), or why it always has an effect (ALWAYS)"
    assert twice == []
    exist = {(command, parameter.name) for command, one in COMMANDS.items() for parameter in one.params}
    assert {(command, name) for command, reasons in ALWAYS.items() for name in reasons} <= exist


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
