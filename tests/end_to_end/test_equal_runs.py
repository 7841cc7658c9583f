"""`dpscope equal` with real jobs: strategies that learn the same, and planted mistakes named where
they matter.
"""

import io
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest
from rich.console import Console

from dpscope.analysis.equality.data import load_equality
from dpscope.analysis.equality.result import EqualityReport
from dpscope.analysis.output.equality import show_equality
from dpscope.launch.learning.equal_run import equality_settings, run_equality
from dpscope.profiling.records.equality import EQUALITY_FOLDER, EQUALITY_NAME
from dpscope.profiling.store.files import read_json, write_json
from dpscope.profiling.store.folders import SETTINGS_NAME
from tests.helpers.light_torchrun import light_jobs

SINGLE, DP, DDP = "single-d1-b8", "dp-host-d2-b4", "ddp-d2-b4"
# An epoch is (3 - 1) x 8 + 8 / 2 + 1 = 21 samples, 11 a device with one repeated: steps of 4, 4, 3
# samples a device.
STEPS, STEPS_PER_EPOCH = 7, 3


class Sound(NamedTuple):
    """A comparison made by the command, in which nothing was planted."""

    out: Path
    ended: "subprocess.CompletedProcess[str]"


def command(out: Path, *flags: str) -> "subprocess.CompletedProcess[str]":
    words = [
        sys.executable,
        "-m",
        "dpscope.launch.cli",
        "equal",
        "--device",
        "cpu",
        "--out",
        str(out),
        *flags,
    ]
    return subprocess.run(
        words,
        env={**os.environ, "COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Sound:
    out = tmp_path_factory.mktemp("equal") / "run"
    with light_jobs():
        return Sound(
            out,
            command(
                out, "--model", "planted_mistakes:none", "--batch-size", "8", "--steps", str(STEPS)
            ),
        )


def report_with(mistake: str, cell: str, sound: Sound, out: Path) -> dict[str, str]:
    """DP and DDP compared, `cell` with a planted mistake and the other as it was: messages of the
    findings by code.
    """
    flags = {
        "device": "cpu",
        "batch_size": "8",
        "steps": STEPS,
        "timeout": 120,
        "strategy": "dp,ddp",
    }
    settings = equality_settings({**flags, "model": f"planted_mistakes:{mistake}"})
    console = Console(file=io.StringIO())
    planted = tuple(job for job in settings.jobs if job.cell.name == cell)
    with light_jobs():
        run_equality(msgspec.structs.replace(settings, jobs=planted), out, console)
    write_json(out / EQUALITY_FOLDER / SETTINGS_NAME, settings)
    for job in settings.jobs:
        if job not in planted:
            shutil.copytree(job.folder(sound.out), job.folder(out))
    rounding = settings.jobs[0].folder(out) / "rounding"
    if not rounding.exists():
        shutil.copytree(sound.out / EQUALITY_FOLDER / SINGLE / "rounding", rounding)
    assert not show_equality(out, "table", console)
    report = read_json(out / EQUALITY_NAME, EqualityReport)
    assert [pair.verdict for pair in report.pairs] == ["different"]
    return {
        finding.code: finding.message for finding in report.findings if finding.severity == "error"
    }


def test_strategies_learn_the_same_with_batch_norm_frozen(sound: Sound) -> None:
    assert sound.ended.returncode == 0, sound.ended.stdout + sound.ended.stderr
    report = read_json(sound.out / EQUALITY_NAME, EqualityReport)
    verdicts = {(pair.reference, pair.other): pair.verdict for pair in report.pairs}
    assert verdicts == {(SINGLE, DP): "equal", (SINGLE, DDP): "equal", (DP, DDP): "bit-equal"}
    assert [(one.training, one.ranks, one.same_bits) for one in report.ranks] == [(DDP, 2, True)]
    assert [finding.code for finding in report.findings] == ["random_layers_off"]
    assert "learn the same over 7 steps of 8 samples in float64" in sound.ended.stdout


def test_every_step_of_every_process_is_kept(sound: Sound) -> None:
    for training in load_equality(sound.out).compared:
        samples = training.samples()
        assert [step.total() for step in samples] == [8, 8, 6, 8, 8, 6, 8]
        assert len(samples[0] | samples[1] | samples[2]) == 21  # of an epoch
        assert [(one.name, one.stored) for one in training.parameters] == [
            ("0.weight", 216), ("1.weight", 8), ("1.bias", 8), ("5.weight", 2048), ("5.bias", 4),
        ]  # fmt: skip


AT_THE_END_OF_AN_EPOCH = f"from step {STEPS_PER_EPOCH - 1} on"


@pytest.mark.parametrize(
    ("mistake", "cell", "code", "expected"),
    [
        (
            "skipped_average",
            DDP,
            "ranks_apart",
            f"{DDP}: from step 3 on rank 1 has different gradients",
        ),
        (
            "no_set_epoch",
            DDP,
            "samples_differ",
            f"from step {STEPS_PER_EPOCH} on {DDP} trains on different samples from {DP}: ",
        ),
        # 21 samples on 2 devices: padded to 22 by the others, cut to 20 here.
        (
            "dropped_by_the_sampler",
            DDP,
            "samples_differ",
            f"{AT_THE_END_OF_AN_EPOCH} {DDP} trains on different samples from {DP}: .* missing are .*, too many are none",
        ),
        # The scatter gives each of 2 devices pairs: of 6 samples 4 get through.
        (
            "dropped_by_the_scatter",
            DP,
            "unexplained_difference",
            f"{DDP} differs from {DP} {AT_THE_END_OF_AN_EPOCH}: the loss by",
        ),
    ],
)
def test_a_planted_mistake_is_named_at_its_step(
    sound: Sound, tmp_path: Path, mistake: str, cell: str, code: str, expected: str
) -> None:
    ((found, message),) = report_with(mistake, cell, sound, tmp_path / "run").items()
    assert found == code
    assert re.search(expected, message)
