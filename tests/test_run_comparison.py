"""Two runs compared: the example against itself and against one made slower."""

import shutil
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from dpscope.analysis.run_analysis import RunData, load_run
from dpscope.analysis.run_comparison import STEP, compare_runs, parse_share, regressions, setting_findings
from dpscope.profiling.run_store import DpscopeError

EXAMPLE = Path(__file__).resolve().parents[1] / "examples" / "run_cpu"


@pytest.fixture(scope="module")
def before() -> RunData:
    return load_run(EXAMPLE)


@pytest.fixture(scope="module")
def slower(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example with every timed DDP step three times as long, the other cells untouched."""
    folder = Path(shutil.copytree(EXAMPLE, tmp_path_factory.mktemp("slower") / "run"))
    for path in (folder / "cells" / "ddp-d2-b8").glob("repeat*/samples_*.parquet"):
        samples = pd.read_parquet(path)
        samples["step_us"] *= 3.0
        samples.to_parquet(path, index=False)
    return folder


def test_a_run_does_not_differ_from_itself(before: RunData) -> None:
    changes = compare_runs(before, before)
    assert {change.quantity for change in changes} == {STEP, "compute", "exposed comm.", "idle"}
    assert {change.ratio.value for change in changes} == {1.0}
    assert {change.verdict for change in changes} <= {"no difference shown", "too few samples"}
    assert regressions(changes, 0.0) == []
    assert setting_findings(before, before) == []


def test_what_got_slower_is_named(before: RunData, slower: Path) -> None:
    after = load_run(slower)
    changes = compare_runs(before, after)
    (worse,) = regressions(changes, 0.05)
    assert worse.cell == "ddp-d2-b8"
    assert worse.ratio.value == pytest.approx(3.0)
    assert regressions(changes, 2.5) == []  # three times as long is 200% more, not over 250%
    (better,) = [one for one in compare_runs(after, before) if one.cell == "ddp-d2-b8" and one.quantity == STEP]
    assert better.verdict == "faster"


def test_the_command_guards_a_ci(slower: Path) -> None:
    def status(*arguments: object) -> int:
        command = [sys.executable, "-m", "dpscope.launch.cli", "compare", *map(str, arguments)]
        return subprocess.run(command, capture_output=True, timeout=60, check=False).returncode

    assert status(EXAMPLE, EXAMPLE) == 0
    assert status(EXAMPLE, slower) == 1
    assert status(EXAMPLE, slower, "--fail-over", "250%") == 0
    assert status(EXAMPLE, slower, "--fail-over", "much") == 2


@pytest.mark.parametrize(("text", "share"), [("5%", 0.05), ("0.05", 0.05), ("0", 0.0)])
def test_shares(text: str, share: float) -> None:
    assert parse_share(text) == pytest.approx(share)


@pytest.mark.parametrize("text", ["much", "-5%", "nan", "inf"])
def test_what_is_no_share(text: str) -> None:
    with pytest.raises(DpscopeError, match="--fail-over"):
        parse_share(text)
