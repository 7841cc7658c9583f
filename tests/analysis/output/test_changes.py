"""`dpscope compare` as a gate: what it cannot judge does not pass, and is reported in every
format.
"""

import io
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from rich.console import Console

from dpscope.analysis.output.changes import print_comparison, verdict_of
from dpscope.analysis.runs.run_data import load_run
from dpscope.profiling.records.run import ParameterSizes
from dpscope.profiling.store.errors import DpscopeError
from tests.helpers.paths import DATA, EXAMPLE_RUN


def run_of(
    folder: Path, *cells: str, change: Callable[[dict[str, object]], object] = lambda config: None
) -> Path:
    """The example with these cells alone, its workload changed."""
    manifest = json.loads((EXAMPLE_RUN / "manifest.json").read_text())
    manifest["plan"] = [one for one in manifest["plan"] if name_of(one["cell"]) in cells]
    change(manifest["config"]["workload"])
    folder.mkdir()
    (folder / "manifest.json").write_text(json.dumps(manifest))
    for cell in cells:
        shutil.copytree(EXAMPLE_RUN / "cells" / cell, folder / "cells" / cell)
    return folder


def name_of(cell: dict[str, object]) -> str:
    return f"{cell['strategy']}-d{cell['devices']}-b{cell['batch_size']}"


SINGLE, DDP = "single-d1-b8", "ddp-d2-b8"
VISIBLE = 7.0  # a slowdown by that share shows in the example, whose cells have two short repeats
QUIET = Console(file=io.StringIO())


def unfolded(text: str) -> str:
    """A text without its blanks, as lines end anywhere in a long path."""
    return "".join(text.split())


def test_a_gate_that_cannot_judge_does_not_pass(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def status(after: Path, force: bool = False) -> tuple[int, str]:
        ended = print_comparison(before, after, VISIBLE, "csv", QUIET, force)
        return ended, unfolded(capsys.readouterr().err)

    before, other = run_of(tmp_path / "before", SINGLE, DDP), tmp_path / "other"
    assert status(before) == (0, "")
    run_of(other, SINGLE, DDP, change=lambda config: config.update(amp="bf16"))
    said = (
        "dpscope: the runs differ in amp off -> bf16. Measure both alike: a change may come from the difference, not from "
        "the code"
    )
    assert status(other) == (3, unfolded(f"{said}; or judge with --force."))
    assert status(other, force=True) == (0, unfolded(f"{said}."))


def test_a_table_begins_with_the_answer_its_reason_and_what_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def shown(before: Path, after: Path, fail_over: float = VISIBLE, force: bool = False) -> str:
        console = Console(file=io.StringIO(), width=500)
        print_comparison(before, after, fail_over, "table", console, force)
        assert capsys.readouterr().err == ""
        return console.file.getvalue()  # type: ignore[attr-defined,no-any-return]

    before = run_of(tmp_path / "before", SINGLE, DDP)
    answer, note, advice, *table = shown(before, before, fail_over=0.01).splitlines()
    assert not any(line.startswith("same: ") for line in table)
    assert any(line.startswith("not judged: these repeats") for line in table)
    assert answer.startswith("Not judged: ")
    assert note.startswith(f"NOTE {SINGLE}, {DDP} not judged: these repeats can detect ")
    assert advice.startswith("NEXT ")
    noisiest = float(re.findall(r"to ([\d.]+)%, not", note)[0])
    (raised,) = re.findall(r"raise --fail-over to (\d+)%, or make the machine quieter$", advice)
    assert noisiest <= int(raised) <= noisiest + 1  # the one shown is rounded
    other = tmp_path / "other"
    run_of(other, SINGLE, DDP, change=lambda config: config.update(amp="bf16"))
    answer, note, advice, *_ = shown(before, other, force=True).splitlines()
    assert answer.startswith("Same: ")
    assert note == "NOTE the runs differ in amp off -> bf16"
    first, blank, title, *table = shown(before, before).splitlines()
    assert (first[:5], blank, title[:4]) == ("Same:", "", "Each")
    legend = "\n".join(table)
    assert "same: no slowdown" in legend
    assert "not judged: " not in legend


def later(
    folder: Path, name: str, begun: str, factor: float, *cells: str, model: str | None = None
) -> Path:
    """The example begun at another time, its steps so many times as long."""
    place = run_of(
        folder / name,
        *cells,
        change=lambda config: config.update({"model": model} if model else {}),
    )
    path = place / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "created_at": begun}))
    for samples in place.rglob("samples_*.parquet"):
        table = pd.read_parquet(samples)
        table["step_us"] *= factor
        table.to_parquet(samples)
    return place


def test_csv_is_one_table_of_every_quantity(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = run_of(tmp_path / "before_us", SINGLE, DDP)
    after = later(tmp_path, "after_us", "2026-11-22T10:00:00+00:00", 2.0, SINGLE, DDP)
    print_comparison(before, after, VISIBLE, "csv", QUIET)
    table = pd.read_csv(io.StringIO(capsys.readouterr().out))
    assert set(table["cell"]) == {SINGLE, DDP}
    steps = table[table["quantity"] == "step"]
    assert list(steps["after_us"]) == pytest.approx(list(2 * steps["before_us"]))
    assert list(steps["ratio"]) == pytest.approx([2.0, 2.0])
    parts = table[table["cell"] == DDP].set_index("quantity")
    assert "step" in parts.index
    assert parts.index.is_unique
    assert list(steps["verdict"]) == ["slower", "slower"]


@pytest.mark.long
def test_json_and_github_say_what_the_exit_status_does(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = run_of(tmp_path / "before", SINGLE, DDP)
    slower = later(tmp_path, "slower", "2030-01-01T00:00:00+00:00", 3.0, SINGLE, DDP)
    lost = run_of(tmp_path / "lost", SINGLE)

    def said(after: Path, output_format: Any, status: int) -> str:
        share = None if after == slower else VISIBLE
        assert print_comparison(before, after, share, output_format, QUIET) == status
        return capsys.readouterr().out

    content = json.loads(said(slower, "json", 1))
    assert (content["status"], content["verdict"], content["regressions"]) == (
        1,
        "regression",
        [SINGLE, DDP],
    )
    step = next(one for one in content["changes"] if one["quantity"] == "step")
    assert step["ratio"] == pytest.approx(3.0)
    assert step["ratio_low"] < 3.0 < step["ratio_high"]
    verdict = verdict_of(load_run(slower))
    assert content["after"] == json.loads(json.dumps(verdict.record()))
    text = said(slower, "github", 1)
    assert text.splitlines()[0] == "### dpscope compare: regression"
    steps, *folded = text.split("<details><summary>")
    assert [part.partition("<")[0] for part in folded] == ["Every quantity", "The later run"]
    assert not any(line in steps for one in verdict.facts for line in one.lines)
    assert all(line in text for one in verdict.facts for line in one.lines)
    content = json.loads(said(lost, "json", 3))
    assert (content["verdict"], content["regressions"]) == ("cannot be judged", [])
    assert f"{DDP} not measured" in content["findings"][0]["message"]
    assert content["answer"].startswith(f"Not judged: {DDP} not measured in {lost}. Same: ")
    assert json.loads(said(before, "json", 0))["verdict"] == "no regression"


def with_parameters(run: Path, count: int) -> Path:
    """The run with another number of parameters in every result."""
    for path in run.rglob("rank_*.json"):
        result = json.loads(path.read_text())
        result["model"]["parameter_count"] = count
        path.write_text(json.dumps(result))
    return run


def test_models_are_compared_by_what_was_computed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two import names of one model compare; other sizes under one name are named."""
    before = run_of(tmp_path / "before", SINGLE)
    renamed = run_of(tmp_path / "named", SINGLE, change=lambda config: config.update(model="a:b"))
    assert print_comparison(before, renamed, VISIBLE, "csv", QUIET) == 0
    assert capsys.readouterr().err == ""
    larger = with_parameters(run_of(tmp_path / "larger", SINGLE), 7)
    assert print_comparison(before, larger, VISIBLE, "csv", QUIET) == 3
    was = model_of(before).parameter_count
    assert f"the runs differ in parameter count {was} -> 7. Measure both alike" in " ".join(
        capsys.readouterr().err.split()
    )


def model_of(run: Path) -> ParameterSizes:
    (_, result) = load_run(run).cells[SINGLE].ranks[0]
    return result.model


def trained(folder: Path, model: str, parameters: int | None = None) -> Path:
    """The stored trainings, of a model of this name, and of another size if that is given."""
    shutil.copytree(DATA / "trained_tiny", folder)
    manifest = folder / "train_manifest.json"
    content = json.loads(manifest.read_text())
    content["config"]["workload"]["model"] = model
    manifest.write_text(json.dumps(content))
    for path in folder.glob("training/*/seed*/result.json"):
        result = json.loads(path.read_text())
        result["parameter_count"] = parameters or result["parameter_count"]
        path.write_text(json.dumps(result))
    return folder


def test_trainings_alone_are_compared_by_what_was_trained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two import names of one model compare; other sizes under one name are named."""
    before = trained(tmp_path / "before", "a:b")
    renamed = trained(tmp_path / "renamed", "c:d")
    assert print_comparison(before, renamed, None, "csv", QUIET) == 0
    assert capsys.readouterr().err == ""
    larger = trained(tmp_path / "larger", "a:b", parameters=7)
    assert print_comparison(before, larger, None, "csv", QUIET) == 3
    assert "-> 7" in capsys.readouterr().err
    other = trained(tmp_path / "other", "c:d", parameters=7)
    with pytest.raises(DpscopeError, match=r" 7\): different models do not compare"):
        print_comparison(before, other, None, "csv", QUIET)
    assert print_comparison(before, other, None, "csv", QUIET, force=True) == 0


def test_different_models_and_nothing_in_common_are_refused(tmp_path: Path) -> None:
    before = run_of(tmp_path / "before", SINGLE)
    after = run_of(
        tmp_path / "after", SINGLE, change=lambda config: config.update(model="resnet8_cifar")
    )
    with_parameters(after, 7)
    with pytest.raises(
        DpscopeError,
        match=r" 7\): different models do not compare; name runs of one model, or add --force$",
    ) as raised:
        print_comparison(before, after, None, "table", QUIET)
    assert (raised.value.exit_status, "\n" in str(raised.value)) == (2, False)
    assert print_comparison(before, after, VISIBLE, "table", QUIET, force=True) == 0
    with pytest.raises(DpscopeError, match=f"in common: .* has {SINGLE}.* has {DDP};") as nothing:
        print_comparison(before, run_of(tmp_path / "ddp", DDP), None, "table", QUIET)
    assert nothing.value.exit_status == 2


def test_not_compared_is_of_cells_that_no_repeat_can_judge(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def reasons(before: Path, after: Path, status: int, fail_over: float = VISIBLE) -> list[str]:
        assert print_comparison(before, after, fail_over, "json", QUIET) == status
        findings = json.loads(capsys.readouterr().out)["findings"]
        return [one["message"] for one in findings if one["code"] == "not_compared"]

    both, ddp_alone = run_of(tmp_path / "both", SINGLE, DDP), run_of(tmp_path / "ddp", DDP)
    (lost,) = reasons(both, ddp_alone, 3)
    assert lost == f"{SINGLE} not measured in {ddp_alone}"
    assert reasons(ddp_alone, both, 0) == [], "a cell that is new was not slower before"

    (hidden,) = reasons(both, both, 3, fail_over=0.01)
    assert f"{DDP} not judged: these repeats can detect" in hidden
    assert hidden.endswith("not 1.0%")
    assert reasons(both, both, 0) == [], "what two repeats can detect"

    once = run_of(tmp_path / "once", SINGLE, DDP)
    for cell in (SINGLE, DDP):
        shutil.rmtree(once / "cells" / cell / "repeat1")
    (without,) = reasons(once, once, 3)
    assert without.startswith(f"{SINGLE}, {DDP} cannot be judged: no interval")


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:40])


FIRST = f"cells/{DDP}/repeat0"


def without_last_steps(run: Path) -> None:
    """Of ten timed steps of a rank nine."""
    path = run / FIRST / "samples_0_0.parquet"
    table = pd.read_parquet(path)
    timed = table[table["measuring_pass"] == "timed"]
    table.drop(index=timed.index[-1]).to_parquet(path, index=False)


@pytest.mark.parametrize(
    ("damage", "reason", "damaged_first"),
    [
        (lambda run: cut(run / FIRST / "samples_0_0.parquet"), "repeat 0 is left out", True),
        (lambda run: cut(run / FIRST / "result.json"), "result.json is not a CellResult", False),
        (lambda run: shutil.rmtree(run / FIRST), f"{DDP}: 1 of 2 repeats measured", True),
        (without_last_steps, f"{DDP}: a repeat has 9 of 10 timed steps", False),
    ],
)
def test_a_run_that_lost_repeats_is_not_judged(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    damage: Callable[[Path], object],
    reason: str,
    damaged_first: bool,
) -> None:
    whole, damaged = run_of(tmp_path / "whole", SINGLE, DDP), run_of(tmp_path / "cut", SINGLE, DDP)
    damage(damaged)
    pair = (damaged, whole) if damaged_first else (whole, damaged)
    assert print_comparison(*pair, VISIBLE, "json", QUIET) == 3
    content = json.loads(capsys.readouterr().out)
    assert content["answer"].startswith(f"Not judged: {damaged}: ")
    assert reason in content["answer"]
    assert [one["code"] for one in content["findings"]].count("repeats_missing") == 1
    # the other cell is whole: its regression is one
    if not damaged_first:
        for path in (damaged / "cells" / SINGLE).rglob("samples_*.parquet"):
            table = pd.read_parquet(path)
            table["step_us"] *= 20.0
            table.to_parquet(path)
        assert print_comparison(*pair, VISIBLE, "json", QUIET) == 1


def test_repeats_that_several_cells_lost_are_stated_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole, damaged = run_of(tmp_path / "whole", SINGLE, DDP), run_of(tmp_path / "cut", SINGLE, DDP)
    for cell in (SINGLE, DDP):
        shutil.rmtree(damaged / "cells" / cell / "repeat1")
    assert print_comparison(whole, damaged, VISIBLE, "json", QUIET) == 3
    content = json.loads(capsys.readouterr().out)
    lost = f"{damaged}: {SINGLE}, {DDP}: 1 of 2 repeats measured"
    assert content["answer"].startswith(f"Not judged: {lost}.")
    # which also says that repeats differ
    assert not any("repeats before" in one["message"] for one in content["findings"])


@pytest.mark.parametrize(("emptied", "damaged_first"), [(False, True), (True, False)])
def test_a_planned_cell_without_repeats_is_not_judged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], emptied: bool, damaged_first: bool
) -> None:
    """Of which nothing is left, or a folder."""
    whole, damaged = run_of(tmp_path / "whole", SINGLE, DDP), run_of(tmp_path / "cut", SINGLE, DDP)
    shutil.rmtree(damaged / "cells" / DDP)
    if emptied:
        (damaged / "cells" / DDP).mkdir()
    pair = (damaged, whole) if damaged_first else (whole, damaged)
    assert print_comparison(*pair, VISIBLE, "json", QUIET) == 3
    content = json.loads(capsys.readouterr().out)
    assert content["answer"].startswith(f"Not judged: {damaged}: {DDP}: 0 of 2 repeats measured")
    (lost,) = (one for one in content["findings"] if one["code"] == "repeats_missing")
    assert lost["next_step"].startswith(f"for {damaged}, run the same command again")


@pytest.mark.long
def test_traces_of_jobs_of_other_sizes_are_not_explained(
    capsys: pytest.CaptureFixture[str],
) -> None:
    pair = (DATA / "compiled_ddp", DATA / "v100x8_ddp_dlrm")
    assert print_comparison(*pair, None, "json", QUIET) == 3
    content = json.loads(capsys.readouterr().out)
    assert content["answer"].startswith("Not judged, as these are not the same kind of job: ")
    assert "%" not in content["answer"]
    assert content["step_changes"] == []


@pytest.mark.long
def test_lost_traces_are_noted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The untraced steps are whole, so they are judged."""
    whole, untraced = run_of(tmp_path / "whole", DDP), run_of(tmp_path / "untraced", DDP)
    for repeat in (untraced / "cells" / DDP).iterdir():
        shutil.rmtree(repeat / "traces")
    console = Console(file=io.StringIO(), width=500)
    assert print_comparison(whole, untraced, VISIBLE, "table", console) == 0
    first, *notes = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert first.startswith("Same: ")
    assert notes[0].startswith(f"NOTE {untraced}: {DDP}: rank 0 has no trace in repeat 0")
    parts = "compute, exposed comm., idle of the traced step known in one run alone"
    assert f"{DDP}: {parts}" in "".join(notes)
    capsys.readouterr()
    print_comparison(whole, untraced, VISIBLE, "github", QUIET)
    assert "has no trace in repeat 0" in capsys.readouterr().out


def test_other_numbers_of_repeats_are_noted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    two, three = run_of(tmp_path / "two", DDP), run_of(tmp_path / "three", DDP)
    shutil.copytree(three / "cells" / DDP / "repeat1", three / "cells" / DDP / "repeat2")
    print_comparison(two, three, VISIBLE, "json", QUIET)
    findings = json.loads(capsys.readouterr().out)["findings"]
    assert [one["message"] for one in findings] == [f"{DDP}: 2 repeats before, 3 after"]
