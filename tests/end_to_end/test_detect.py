"""`run --detect`: repeats chosen from what the first ones show, and chosen again when the command
is repeated.
"""

import io
from itertools import chain, repeat
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console

from dpscope.analysis.runs.run_data import load_run, repeat_costs, repeat_findings
from dpscope.launch.commands import detect
from dpscope.launch.commands.detect import first_round, run_until_detected
from dpscope.launch.planning.run_config import load_config
from dpscope.profiling.store.folders import RunFolder
from tests.helpers.light_torchrun import light_jobs
from tests.helpers.sweeps import TINY

NAME = "single-d1-b2"


def run_detect(out: Path, change: float, limit_s: float) -> str:
    """By a clock that counts no time up to the first choice, however busy the machine is, and all
    of it from then on.
    """
    flags = {name: value for name, value in TINY.items() if name != "repeats"}
    config = first_round(
        load_config(None, {**flags, "strategy": "single", "devices": "1", "steps": 5})
    )
    console = Console(file=io.StringIO(), width=200)
    clock = SimpleNamespace(monotonic=chain([0.0, 0.0], repeat(limit_s)).__next__)
    with light_jobs(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(detect, "time", clock)
        assert run_until_detected(config, out, False, console, change, limit_s).ok
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


def test_repeats_are_chosen_and_chosen_again(tmp_path: Path) -> None:
    """Three if the limit allows no more; with time for one more, that one is measured and none is
    missing.
    """
    out = tmp_path / "run"
    printed = run_detect(out, 0.0001, 0.1)
    assert "Repeats that show a change of 0.01% between two such runs" in printed
    assert "the limit of 0 s or of repeats allows no more" in printed
    assert RunFolder(out).manifest().repeats_by_cell == {NAME: 3}

    (cost,) = repeat_costs(RunFolder(out)).values()
    assert cost.noise.repeats == 3
    run_detect(out, 0.0001, 1.5 * cost.repeat_s)
    run = load_run(out)
    (measured,) = run.measured
    assert len(measured.step_samples()) == 4
    assert run.manifest.repeats_by_cell == {NAME: 4}
    assert "repeats_missing" not in [one.code for one in repeat_findings(run)]
