"""Why a traced step changed: what is planted is found, and the parts add up."""

import json
from pathlib import Path

import pytest

from dpscope.analysis.output.changes import print_comparison
from dpscope.analysis.output.step_changes import sentence_of, tables_of
from dpscope.analysis.runs.class_change import ClassChange, PartChange
from dpscope.analysis.runs.run_data import traced_repeats
from dpscope.analysis.runs.step_change import COMPUTE, StepChange, step_changes
from dpscope.analysis.text.terminal import Terminal
from dpscope.analysis.traces.ranks.readers import find_traces
from dpscope.analysis.traces.ranks.reduce import reduce_traces
from dpscope.analysis.traces.ranks.trace_analysis import analyze_jobs
from dpscope.analysis.traces.ranks.trace_files import read_attributed
from dpscope.analysis.traces.reading.chunks import DEFAULT_LIMITS
from dpscope.analysis.traces.steps.breakdown import step_table
from dpscope.analysis.traces.steps.kernel_work import kernel_work
from tests.helpers.changed_jobs import LATE_RANK, OPERATORS, Planted, duration_us, write_jobs
from tests.helpers.nsys_exports import convert, load_trace
from tests.helpers.paths import DATA, EXAMPLE_RUN

NOISE = 0.01


def changed(folder: Path, before: Planted, after: Planted, repeats: int = 3) -> StepChange:
    sides = []
    for seed, planted in enumerate((before, after)):
        path = write_jobs(folder / f"side{seed}", planted, repeats, seed)
        sides.append(traced_repeats(analyze_jobs([path]), [path]))
    (change,) = step_changes(*sides)
    assert sum(one.change_us for one in change.parts) == pytest.approx(change.change_us, abs=1e-3)
    compute_us = sum(one.change_us for one in change.parts if one.part == COMPUTE)
    assert sum(one.change_us for one in change.classes) == pytest.approx(compute_us, abs=1e-3)
    return change


def significant(change: StepChange) -> list[str]:
    return [one.part for one in change.classes if one.significant]


def test_an_operator_that_is_7_percent_slower_is_named(tmp_path: Path) -> None:
    change = changed(tmp_path, Planted(noise=NOISE), Planted(slower={15: 1.07}, noise=NOISE))
    assert significant(change) == ["aten::op_15"]
    (slower,) = (one for one in change.classes if one.significant)
    assert slower.count_us == 0
    assert slower.alone_us == pytest.approx(0.07 * 2 * duration_us(15), abs=5.0)


def test_further_calls_are_counted_and_no_slower_kernels(tmp_path: Path) -> None:
    change = changed(tmp_path, Planted(noise=NOISE), Planted(twice=frozenset({7}), noise=NOISE))
    assert significant(change) == ["aten::op_7"]
    (more,) = (one for one in change.classes if one.significant)
    assert (more.calls_before, more.calls_after) == (2, 4)
    assert more.count_us == pytest.approx(2 * duration_us(7), rel=0.03)


def test_a_late_rank_is_waiting_for_it_and_no_kernel(tmp_path: Path) -> None:
    """Rank 0 waits 400 us more and rank 1 is idle 400 us more: 200 us each on average."""
    change = changed(tmp_path, Planted(), Planted(late_us=400.0), repeats=1)
    assert change.change_us == pytest.approx(400.0, abs=0.01)
    parts_us = {one.part: one.change_us for one in change.parts}
    assert parts_us[f"waiting for rank {LATE_RANK}"] == pytest.approx(200.0, abs=0.01)
    assert parts_us["idle"] + parts_us["idle, nothing launched"] == pytest.approx(200.0, abs=0.01)
    assert parts_us[COMPUTE] == pytest.approx(0.0, abs=0.01)
    assert change.critical_rank == LATE_RANK
    assert not change.some_ranks


def test_contention_is_told_from_slower_kernels(tmp_path: Path) -> None:
    """Kernels next to the all-reduce take 1.2 times as long: a fifth of half of the compute."""
    change = changed(tmp_path, Planted(), Planted(contention=1.2), repeats=1)
    planted_us = 0.2 * sum(map(duration_us, range(OPERATORS)))
    assert sum(one.contention_us or 0.0 for one in change.classes) == pytest.approx(planted_us)
    assert sum(one.alone_us or 0.0 for one in change.classes) == pytest.approx(0.0, abs=0.01)


def test_kernels_that_a_library_renamed_are_compared(tmp_path: Path) -> None:
    after = Planted(renamed=frozenset({3}), slower={3: 0.5})
    change = changed(tmp_path, Planted(), after, repeats=1)
    (renamed,) = (one for one in change.classes if one.occurrence == "renamed")
    assert renamed.part == "aten::op_3"
    assert renamed.change_us == pytest.approx(-duration_us(3), abs=0.01)


def test_without_input_sizes_the_answer_says_so(tmp_path: Path) -> None:
    change = changed(tmp_path, Planted(shapes=False), Planted(shapes=False), repeats=1)
    (note,) = change.notes
    assert note.startswith(
        "the input sizes of kernels with 100% of the compute time are not recorded"
    )


@pytest.mark.parametrize(
    "traces",
    [
        DATA / "a100x2_ddp_resnet50_rank0.json.gz",
        DATA / "v100x8_ddp_dlrm",
        *sorted((EXAMPLE_RUN / "cells").glob("*/repeat0/traces")),
    ],
    ids=str,
)
def test_the_classes_of_a_step_add_up_to_its_compute(traces: Path) -> None:
    """Of real traces, on devices and CPUs, of processes and of threads."""
    for file in find_traces([traces]):
        for attribution in read_attributed(file, DEFAULT_LIMITS):
            steps = step_table(attribution)
            work = kernel_work(attribution)
            groups = work.group("device", "step")
            place = steps.places_in(work.take(groups.first), ("device", "step"))
            sums_us = groups.sums(work["time_us"])[place]
            assert sums_us.tolist() == pytest.approx(steps["compute_us"].tolist(), abs=1e-6)


def test_jobs_of_other_sizes_compare_their_common_ranks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = write_jobs(tmp_path / "before", Planted(), 1)
    after = write_jobs(tmp_path / "after", Planted(slower={15: 1.5}), 1)
    (after / "0_1.pt.trace.json").unlink()
    assert print_comparison(before, after, None, "json", Terminal()) == 3
    assert json.loads(capsys.readouterr().out)["step_changes"] == []  # unless one insists
    print_comparison(before, after, None, "json", Terminal(), force=True)
    (change,) = json.loads(capsys.readouterr().out)["step_changes"]
    assert change["ranks"] == [0]
    assert change["notes"][0] == "only the ranks that both runs traced are compared: 0"
    slower = max(change["classes"], key=lambda one: one["change_us"])
    assert (slower["part"], slower["change_us"]) == (
        "aten::op_15",
        pytest.approx(duration_us(15), abs=0.01),
    )


def test_no_kernel_of_a_cpu_is_one_of_a_device(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The answer begins with that; with --force the steps are explained, by parts alone."""
    pair = (
        EXAMPLE_RUN / "cells" / "ddp-d2-b8" / "repeat0" / "traces",
        write_jobs(tmp_path / "gpu", Planted()),
    )
    assert print_comparison(*pair, None, "json", Terminal()) == 3
    content = json.loads(capsys.readouterr().out)
    kinds = f"{pair[0]} traced the CPU alone, {pair[1]} devices"
    assert content["answer"] == f"Not judged, as these are not the same kind of job: {kinds}."
    assert content["step_changes"] == []
    print_comparison(*pair, None, "json", Terminal(), force=True)
    (change,) = json.loads(capsys.readouterr().out)["step_changes"]
    assert (change["classes"], change["notes"]) == ([], [])
    assert change["no_classes"].endswith("no kernel is alike")


def test_partials_hold_no_kernels_and_the_ledger_is_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, planted in (("before", Planted()), ("after", Planted(late_us=400.0))):
        reduce_traces(write_jobs(tmp_path / f"{name}_traces", planted), tmp_path / name)
    assert print_comparison(tmp_path / "before", tmp_path / "after", None, "json", Terminal()) == 3
    (change,) = json.loads(capsys.readouterr().out)["step_changes"]
    assert change["classes"] == []
    assert "holds no events" in change["no_classes"]
    assert change["change_us"] == pytest.approx(400.0, abs=0.01)


def test_the_answer_names_the_parts_and_fits_80_columns(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    before = write_jobs(tmp_path / "a", Planted(noise=NOISE), 3, 1)
    after = write_jobs(tmp_path / "b", Planted(noise=NOISE, twice=frozenset({19})), 3, 2)
    assert print_comparison(before, after, 0.5, "table", Terminal()) == 0
    shown = capsys.readouterr().out
    assert "aten::op_19 (2 to 4 calls)" in " ".join(shown.split())
    assert "What changed in the traced step" in shown
    assert "by kernels" in shown
    assert max(map(len, shown.splitlines())) <= 80
    print_comparison(before, after, 0.5, "github", Terminal())
    assert "aten::op_19" in capsys.readouterr().out


def test_traced_steps_that_do_not_differ_are_said_not_to_show_a_change() -> None:
    """By 0.05% of 20 ms, of which nothing is shown; by 0.1% of it, of which all is."""
    same = StepChange("ddp-d2-b8", 20e3, 20.01e3, (PartChange(COMPUTE, 20e3, 20.01e3),))
    assert sentence_of(same) == "ddp-d2-b8: the traced steps do not show it (20.0 ms in both)."
    assert list(tables_of(same)) == []
    longer = StepChange("ddp-d2-b8", 20e3, 20.02e3, (PartChange(COMPUTE, 20e3, 20.02e3),))
    assert "traced step 20.0 µs longer (0.1%)" in sentence_of(longer, "slower")
    opposite = "ddp-d2-b8: the traced steps do not show it: traced step 20.0 µs longer (0.1%)"
    assert sentence_of(longer, "faster").startswith(opposite)
    assert len(list(tables_of(longer))) == 1


def _gone(before_us: float) -> ClassChange:
    """17 calls of one kernel, whose grid is that of no other class."""
    return ClassChange(
        part="flash_fwd",
        before_us=before_us,
        after_us=0.0,
        kernel="flash_fwd",
        calls_before=17,
        calls_after=0,
        occurrence="gone",
        count_us=-before_us,
        duration_us=0.0,
        alone_us=None,
        critical_change_us=None,
        probability=None,
    )


def test_the_sentence_says_of_how_many_rows_of_the_table_it_speaks() -> None:
    step = StepChange(
        cell="job",
        before_us=1_000.0,
        after_us=800.0,
        parts=(PartChange(COMPUTE, 1_000.0, 800.0),),
        classes=(_gone(150.0), _gone(50.0)),
        ranks=(0,),
        critical_rank=None,
    )
    assert "flash_fwd (gone, 34 calls in 2 classes)" in sentence_of(step)


def test_the_sentence_names_the_ranks_of_a_part_of_the_job_and_no_zero() -> None:
    """10 us of 100 us: 10%; what is left of the parts is 0."""
    step = StepChange(
        cell="a to b",
        before_us=100.0,
        after_us=110.0,
        parts=(PartChange("idle", 20.0, 30.0), PartChange("transfer of all_reduce", 5.0, 5.0)),
        ranks=(0, 1),
        some_ranks=True,
    )
    assert sentence_of(step) == (
        "a to b: traced step of ranks 0, 1, which both jobs traced, 10.0 µs longer (10%): +10.0 µs idle."
    )


@pytest.mark.parametrize(
    ("before", "words"),
    [(0, "waits least for the others before and after"), (1, "after; before, rank 1 does")],
)
def test_the_rank_that_waits_least_is_named_by_both_jobs(before: int, words: str) -> None:
    step = StepChange(
        cell="job",
        before_us=1_000.0,
        after_us=800.0,
        parts=(PartChange(COMPUTE, 1_000.0, 800.0),),
        classes=(_gone(150.0), _gone(50.0)),
        ranks=(0, 1),
        critical_rank=0,
        critical_rank_before=before,
    )
    _, kernels = tables_of(step)
    assert words in kernels.notes[-1]


def test_traces_without_marked_steps_are_compared_as_one_step(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Six steps of 400 us more waiting, of which the trace is one step."""
    sides = []
    for name, late_us in (("before", 0.0), ("after", 400.0)):
        side = write_jobs(tmp_path / name, Planted(late_us=late_us))
        for file in side.iterdir():
            trace = json.loads(file.read_text())
            events = [one for one in trace["traceEvents"] if "Step" not in one["name"]]
            file.write_text(json.dumps({**trace, "traceEvents": events}))
        sides.append(side)
    before, after = sides
    assert print_comparison(before, after, None, "json", Terminal()) == 3
    (change,) = json.loads(capsys.readouterr().out)["step_changes"]
    assert change["change_us"] == pytest.approx(6 * 400.0, abs=0.01)


def test_exports_of_nsys_are_compared_as_the_traces_they_are_of(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One operator takes half as long again, and a rank comes 400 us late, of which each rank
    waits or idles 200 us on average.
    """
    paths = []
    for name, planted in (("before", Planted()), ("after", Planted({15: 1.5}, late_us=400.0))):
        traces = sorted(write_jobs(tmp_path / name, planted).iterdir())
        paths.append(convert([load_trace(one) for one in traces], tmp_path / f"{name}.sqlite"))
    before, after = paths
    assert print_comparison(before, after, None, "json", Terminal()) == 3  # of one job each
    (change,) = json.loads(capsys.readouterr().out)["step_changes"]
    # the second half of the operator's calls runs next to the all-reduce, which is longer
    assert change["change_us"] == pytest.approx(400.0 + duration_us(15) / 2, abs=0.01)
    parts_us = {one["part"]: one["change_us"] for one in change["parts"]}
    assert parts_us[f"waiting for rank {LATE_RANK}"] == pytest.approx(200.0, abs=0.01)
    assert parts_us[COMPUTE] == pytest.approx(duration_us(15), abs=0.01)
    slower = max(change["classes"], key=lambda one: one["change_us"])
    assert slower["part"] == slower["kernel"] == "kernel_15"  # aten's ranges are not read
    assert slower["change_us"] == pytest.approx(duration_us(15), abs=0.01)
