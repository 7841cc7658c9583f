"""`dpscope compare` as a gate: what it cannot judge does not pass, and is told on standard error in every format."""

import io
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from dpscope.analysis.output.changes import print_comparison
from dpscope.profiling.store.errors import DpscopeError, NotComparableError
from tests.helpers.paths import EXAMPLE_RUN


def run_of(folder: Path, *cells: str, change: Callable[[dict[str, object]], object] = lambda config: None) -> Path:
    """The example with these cells alone and without traces, which the timed steps do not need; its settings changed."""
    manifest = json.loads((EXAMPLE_RUN / "manifest.json").read_text())
    manifest["plan"] = [one for one in manifest["plan"] if name_of(one["cell"]) in cells]
    change(manifest["config"])
    folder.mkdir()
    (folder / "manifest.json").write_text(json.dumps(manifest))
    for cell in cells:
        ignored = shutil.ignore_patterns("traces", "counters")
        shutil.copytree(EXAMPLE_RUN / "cells" / cell, folder / "cells" / cell, ignore=ignored)
    return folder


def name_of(cell: dict[str, object]) -> str:
    return f"{cell['strategy']}-d{cell['devices']}-b{cell['batch_size']}"


SINGLE, DDP = "single-d1-b8", "ddp-d2-b8"
QUIET = Console(file=io.StringIO())


@pytest.mark.parametrize("output_format", ["table", "csv", "markdown", "latex"])
def test_a_gate_that_cannot_judge_does_not_pass(
    tmp_path: Path, output_format: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def status(before: Path, after: Path, force: bool = False) -> tuple[int, str]:
        ended = print_comparison(before, after, None, output_format, QUIET, force)  # type: ignore[arg-type]
        return ended, capsys.readouterr().err

    before, other = run_of(tmp_path / "before", SINGLE, DDP), tmp_path / "other"
    assert status(before, before) == (0, "")
    run_of(other, SINGLE, DDP, change=lambda config: config.update(amp="bf16"))
    said = "dpscope: the runs differ in amp off -> bf16; a change may come from that and not from the code\n"
    assert status(before, other) == (3, said)
    assert status(before, other, force=True) == (0, said)
    lost = run_of(tmp_path / "lost", SINGLE)
    assert status(before, lost) == (
        3,
        f"dpscope: {DDP} cannot be judged: not measured in {lost}; measure the same cells in both runs, or see why they "
        "failed there\n",
    )
    assert status(lost, before) == (0, ""), "a cell that is new was not slower before"


def test_no_interval_is_no_pass(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One repeat of each cell: nothing to tell the spread between repeats from."""
    once = run_of(tmp_path / "once", SINGLE, DDP)
    for cell in (SINGLE, DDP):
        shutil.rmtree(once / "cells" / cell / "repeat1")
    assert print_comparison(once, once, None, "csv", QUIET) == 3
    assert capsys.readouterr().err.startswith(
        "dpscope: no step has an interval, so none can be called slower or faster; time two"
    )


def test_different_models_and_nothing_in_common_are_refused(tmp_path: Path) -> None:
    before = run_of(tmp_path / "before", SINGLE)
    after = run_of(tmp_path / "after", SINGLE, change=lambda config: config.update(model="resnet8_cifar"))
    with pytest.raises(
        DpscopeError, match=r"different models do not compare; name runs of one model, or add --force$"
    ) as told:
        print_comparison(before, after, None, "table", QUIET)
    assert (told.value.exit_status, "\n" in str(told.value)) == (2, False)
    assert print_comparison(before, after, None, "table", QUIET, force=True) == 0
    with pytest.raises(NotComparableError, match="no measured cell in common") as nothing:
        print_comparison(before, run_of(tmp_path / "ddp", DDP), None, "table", QUIET)
    assert nothing.value.exit_status == 3
