"""Options that do nothing are refused: each situation of the table, and no rule about an option
that does not exist.
"""

import re
import shutil
from collections.abc import Mapping
from pathlib import Path

import click
import pytest
import typer
from typer.testing import CliRunner

from dpscope.launch.commands.command import Command
from dpscope.launch.contents import app
from dpscope.launch.learning.train_plan import load_train_config
from dpscope.launch.planning.run_config import flag_name, load_config
from dpscope.profiling.records.config import RunConfig
from dpscope.profiling.records.settings import declarations
from dpscope.profiling.records.training import TrainConfig
from dpscope.profiling.store.errors import DpscopeError
from tests.helpers.paths import EXAMPLE_RUN
from tests.helpers.trainings import plain_epochs, write_train_json

COMMANDS: Mapping[str, click.Command] = typer.main.get_command(app).commands  # type: ignore[attr-defined]
MEASURING = (
    "--devices 2 --collectives broadcast --dtype float16 --min-bytes 1KiB --max-bytes 1MiB --iterations 3 --warmup 1 --timeout 9 "
    "--device cpu"
)
OF_DDP = (
    "--comm-hook fp16 --nccl-engine legacy --bucket-mb 5 --ddp-args batched_grad_copy=true --overlap off "
    "--broadcast-buffers off"
)
LIMITS = "--max-bytes 1000000 --max-events 1000000"
DETAIL = "--verbose --quiet --figures svg --open"
MEETING = "--node-rank 1 --rendezvous host0:29500 --wait-for-nodes 60"

# A command line, in which TRACE, RUN, TRAINED, EARLIER, PARTIAL and RECORD are paths, and options that do
# nothing with it.
SITUATIONS = {
    "analyze TRACE": "--target-efficiency 0.8 --target-accuracy 90% --tables --quiet --figures svg --open "
    "--hosts hosts.txt",
    "analyze TRACE --format csv": "--link 10GB/s --calibration calibration.json --nccl-log nccl.log --flops 1T "
    "--hide-hosts",
    "analyze RUN": f"{LIMITS} --steps-by step --target-accuracy 90% --hide-hosts",
    "analyze RUN --format csv": "--nccl-log nccl.log --target-efficiency 0.8",
    "analyze RUN --format json": f"--report x --tables {DETAIL}",
    "analyze RUN --tables": f"--nccl-log nccl.log --flops 1T --report x --target-efficiency 0.8 {DETAIL}",
    "analyze RUN --quiet": "--verbose",
    "analyze TRAINED": f"--link 10GB/s --target-efficiency 0.8 {LIMITS} --calibration calibration.json --nccl-log nccl.log "
    "--flops 1T --report x",
    "analyze TRAINED --format csv": "--target-accuracy 90%",
    "analyze TRAINED --tables": "--target-accuracy 90%",
    "analyze PARTIAL": LIMITS,
    "analyze RECORD": "--calibration calibration.json --nccl-log nccl.log --flops 1T "
    "--max-events 1000000 --steps-by step",
    "reduce PARTIAL -o x.dpscope": f"--share 1/2 --jobs 2 --steps-by step {LIMITS}",
    "merge TRACE -o merged.json": "--cell ddp-d2-b2 --repeat 1",
    "whatif TRACE": "--cell ddp-d2-b8",
    "whatif RUN": "--base-devices 2 --base-batch-size 8 --base-bucket-mb 5 --steps-by step",
    "bundle RUN --list": "--output b.zip",
    "compare TRAINED EARLIER": "--fail-over 5%",
    "tensorboard TRAINED": "--link 10GB/s",
    "tensorboard RUN": "--out x",
    "attach --quiet": "--verbose",
    "calibrate": f"--in-place --format json {MEETING}",
    "calibrate --from-nccl-tests TRACE": f"{MEASURING} --nodes 2",
    "calibrate --predict 64 RUN": f"{MEASURING} --link 100Gb/s --out x",
    "equal": MEETING,
    "equal --data synthetic": "--workers 1",
    "equal --dry-run": "--format json",
    "run": f"--detect-limit 60 {MEETING}",
    "run --quiet": "--verbose",
    "run --dry-run": "--verbose --quiet --open --link 100Gb/s --target-efficiency 0.8 --wandb --wandb-online",
    "run --strategy single": "--link 100Gb/s --target-efficiency 0.8 --calibrate",
    "run --strategy single,fsdp": "--ddp-alone --bucket-mb 5",
    "run --devices 1": "--link 100Gb/s --target-efficiency 0.8 --scaling strong --scaling both --record-collectives",
    "run --devices 2": "--ddp-alone --no-ddp-alone",
    "run --data synthetic": "--workers 1 --workers-total 2 --pin-memory --transforms per-image",
    "run --data fake --workers-total 2": "--workers 1",
    "run --data fake --device cpu": "--pin-memory --no-pin-memory",
    "run --detect 5%": "--repeats 4",
    "run --detect 5% --dry-run": "--detect-limit 60",
    "train": MEETING,
    "train --dry-run": "--target-accuracy 90% --wandb --wandb-online",
    "train --devices 1": "--scaling weak",
    "train --device cpu --workers-total 2": "--workers 1 --pin-memory",
    "train --data fake": "--augment --data-dir x --transforms per-image",
    "train --epochs 3": "--gamma 0.2 --learning-rate-scaling linear",
    **{f"{command} --wandb-online": "--wandb" for command in ("run", "train")},
    "run --strategy single,dp": f"{OF_DDP} --record-collectives",
    "train --strategy single,dp": OF_DDP,
    **{f"{command} --nodes 2 --dry-run": MEETING for command in ("run", "train", "equal")},
    **{
        f"{command} --data digits": "--data-dir x --download --samples 9"
        for command in ("run", "train", "equal")
    },
}
CASES = [
    (line, option)
    for line, options in SITUATIONS.items()
    for option in re.split(" (?=--)", options)
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("idle")


@pytest.fixture(scope="module")
def places(folder: Path) -> dict[str, Path]:
    """What the words in capitals stand for; no command changes them."""
    names = {"TRACE": "rank0.json", "PARTIAL": "n0.dpscope", "RECORD": "_dump_0", "RUN": "run"}
    places = {name: folder / file for name, file in names.items()}
    places["TRACE"].write_text("{}")
    places["PARTIAL"].touch()
    places["RECORD"].write_text('{"entries":[]}')
    places["RUN"].mkdir()
    shutil.copy(EXAMPLE_RUN / "manifest.json", places["RUN"])
    for name in ("TRAINED", "EARLIER"):
        epochs = plain_epochs("single", 1, 0, [80.0], [4.0])
        places[name] = write_train_json(folder / name.lower(), epochs)
    return places


@pytest.mark.parametrize(("line", "option"), CASES)
def test_an_option_that_does_nothing_is_refused(
    line: str, option: str, folder: Path, places: dict[str, Path]
) -> None:
    before = sorted(folder.rglob("*"))
    command, *words = [str(places.get(one, one)) for one in f"{line} {option}".split()]
    out = ["--out", str(folder / "out")]
    last = {"run": out, "train": out, "attach": ["--", str(places["TRACE"])]}.get(command, [])
    ended = CliRunner().invoke(app, [command, *words, *last])
    assert isinstance(ended.exception, DpscopeError), ended.output
    message = str(ended.exception)
    assert message.startswith(option.partition(" ")[0])
    assert message.endswith("omit it")
    assert "\n" not in message
    assert sorted(folder.rglob("*")) == before


def test_every_rule_is_about_options_that_exist_and_is_tested() -> None:
    tested = {(line.partition(" ")[0], option.partition(" ")[0]) for line, option in CASES}
    for command in COMMANDS.values():
        assert isinstance(command, Command)
        flags = {parameter.name: parameter.opts[0] for parameter in command.params}
        assert {
            (command.name, flags[name]) for rule in command.idle for name in rule.parameters.split()
        } <= tested
    declared = {**declarations(RunConfig), **declarations(TrainConfig)}
    settings = {flag_name(name) for name, one in declared.items() if one.idle is not None}
    assert settings <= {option for _, option in tested}


def test_options_that_do_something_are_taken() -> None:
    assert (
        load_config(None, {"data": "cifar10", "data_dir": "x", "download": True}).workload.data_dir
        == "x"
    )
    assert load_config(None, {"data": "fake", "samples": 9, "workers": 1}).workload.samples == 9
    taken = load_train_config(
        None, {"milestones": "2", "gamma": 0.2, "scaling": "weak", "learning_rate_scaling": "sqrt"}
    )
    assert (taken.gamma, taken.milestones) == (0.2, (2,))


def test_a_file_may_serve_several_commands(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text('data_dir = "x"\nsamples = 9\n')
    assert load_config(tmp_path / "run.toml", {"data": "digits"}).workload.data_dir == "x"
