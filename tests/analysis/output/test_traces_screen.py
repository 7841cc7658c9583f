"""Traces that no run made get what runs get: ring formula, predictions, report page, comparison,
TensorBoard; several jobs, too.

Two ranks of a generated DDP job: a step all-reduces 6 + 11.52 + 2 = 19.52 MB, in transfers of 60 +
96 + 40 = 196 us.
"""

import csv
import gzip
import io
import json
import shutil
from functools import cache
from io import StringIO
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from dpscope.analysis.findings.cost import ledger_table
from dpscope.analysis.findings.verdict import traces_verdict
from dpscope.analysis.output.changes import print_comparison
from dpscope.analysis.output.run_screen import Targets
from dpscope.analysis.output.traces_screen import (
    ReadJob,
    job_csv,
    job_findings,
    job_tables,
    model_tables,
    print_traces,
    report_of_traces,
    traces_json,
)
from dpscope.analysis.report.build import Report
from dpscope.analysis.traces.ranks.job import Job
from dpscope.analysis.traces.ranks.trace_analysis import analyze_jobs, analyze_traces
from dpscope.analysis.traces.reading.chunks import DEFAULT_LIMITS
from dpscope.profiling.machine.link_specifications import parse_link
from dpscope.profiling.records.calibration import Calibration, Collective, Contention
from dpscope.profiling.store.files import write_json
from tests.generated_traces.generator import ddp_trace, trace_text, write_ddp_job, write_trace
from tests.helpers.known import known
from tests.helpers.made_traces import launch, on_device, operator, step, write
from tests.helpers.made_verdicts import said
from tests.helpers.paths import DATA
from tests.helpers.run_cells import fitted, timed
from tests.helpers.several_jobs import write_job

LINK = parse_link("50GB/s")
AT_LINK = Targets(LINK)
STEP_BYTES, TRANSFER_US = 19_520_000, 196


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_ddp_job(tmp_path_factory.mktemp("job"))


@cache
def analyzed(folder: Path) -> Job:
    return analyze_traces([folder])


def reported(folder: Path, targets: Targets = AT_LINK) -> Report:
    return report_of_traces(analyzed(folder), [folder], targets)


def read(folder: Path) -> dict[str, ReadJob]:
    return {name: ReadJob(analysis) for name, analysis in analyze_jobs(folder).items()}


def row_of(report: Report) -> dict[str, object]:
    (row,) = report.comparison.table.to_dict("records")
    return {str(name): value for name, value in row.items()}


def calibration(*kinds: Collective) -> Calibration:
    """100 us + S / 100 GB/s for each kind on two devices."""
    points = (
        timed(2, 100.0, 100.0, (1_000, 100_000, 10_000_000, 20_000_000), kind) for kind in kinds
    )
    return fitted(*points, backend="nccl", device_names=("a", "b"))


def printed(*paths: Path, targets: Targets | None = None) -> list[str]:
    """The lines on a wide terminal."""
    console = Console(file=StringIO(), width=200)
    assert print_traces(paths, "table", DEFAULT_LIMITS, console, targets or Targets()) == 0
    lines: list[str] = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    return lines


@pytest.mark.long
def test_the_ring_formula_and_what_the_trace_implies_and_lacks(traces: Path) -> None:
    report = reported(traces)
    row = row_of(report)
    assert (row["cell"], row["strategy"], row["devices"]) == ("traces of 2 ranks", "ddp", 2)
    assert row["ring_us"] == pytest.approx(2 * (2 - 1) / 2 * STEP_BYTES / 50e3)  # 390.4 us
    assert row["ring_error_us"] == pytest.approx(390.4 - TRANSFER_US)
    assert row["busbw_gb_per_s"] == pytest.approx(STEP_BYTES / TRANSFER_US / 1e3)  # 99.59 GB/s
    assert row["transfer_of_link"] == pytest.approx(STEP_BYTES / TRANSFER_US / 1e3 / 50)
    formula = model_tables(report)[0].rows[0]
    assert "2(2−1)/2 × 19.5 MB / 50 GB/s" in formula[1]
    assert formula[3:5] == ("390.4 µs", "196.0 µs")
    unknown = (
        "batch_size",
        "step_us",
        "samples_per_s",
        "weak_efficiency",
        "same_local_batch_us",
        "tracer_cost",
    )
    assert [name for name in unknown if row[name] is not None and row[name] == row[name]] == []
    reasons = report.comparison.reasons
    assert all(reasons["traces of 2 ranks", name].startswith("traces alone") for name in unknown)
    assert report.verdict.fact("which") is None
    ranks = ["mean of 2 ranks", "rank 0, slowest", "rank 1, waits longest"]
    assert [line[0] for line in report.first["step"].rows] == ranks
    assert {"time", "memory", "checks"} & set(report.tables) == set()


@pytest.mark.long
def test_what_includes_waiting_is_not_compared_with_a_model(traces: Path) -> None:
    """Of one of two ranks; of both, each all-reduce has a transfer."""
    one, both = (reported(path) for path in (DATA / "a100x2_ddp_resnet50_rank0.json.gz", traces))
    (row,) = one.comparison.rows.values()
    assert known(row.predicted_exposed_us) > 0
    assert row.number("predicted_exposed_error") is None
    (row,) = both.comparison.rows.values()
    assert row.number("predicted_exposed_error") is not None
    why = "only one process was read"
    formulas, steps, sizes = (
        one.tables[name] for name in ("formulas", "predictions", "collectives")
    )
    assert {row[-2:] for row in formulas.rows} == {("NA", "NA")}
    assert f"measured NA of all_reduce: {why}" in formulas.notes
    includes = f"the measured value includes waiting: {why}"
    assert f"measured NA of DDP's schedule: {includes}" in formulas.notes
    assert any(note.startswith("error of exposed NA") for note in steps.notes)
    assert f"measured NA of all_reduce: {why}" in sizes.notes
    assert any(note.startswith("measured NA of broadcast: rooted") for note in sizes.notes)
    assert "1 more not shown" in sizes.notes
    assert "prediction_off" not in {finding.code for finding in one.findings}
    measured = [note for note in both.tables["formulas"].notes if note.startswith("measured NA")]
    assert not any("all_reduce" in note or "schedule" in note for note in measured)


@pytest.mark.long
def test_a_calibration_predicts_what_was_traced(traces: Path, tmp_path: Path) -> None:
    """Per all-reduce 100 us + S / 100 GB/s: 300 + 195.2 us; a broadcast of 38,400 B takes 100.384
    us, of 160 B 100.0016.
    """
    write_json(tmp_path / "part.json", calibration("all_reduce"))
    row = row_of(reported(traces, Targets(calibration=tmp_path / "part.json")))
    assert row["predicted_transfer_us"] == pytest.approx(495.2, rel=1e-3)
    assert row["predicted_transfer_error"] == pytest.approx(495.2 / TRANSFER_US - 1, rel=1e-3)
    assert (
        row["predicted_exposed_us"] is None
        or row["predicted_exposed_us"] != row["predicted_exposed_us"]
    )
    write_json(tmp_path / "whole.json", calibration("all_reduce", "broadcast"))
    whole = row_of(reported(traces, Targets(calibration=tmp_path / "whole.json")))
    assert float(str(whole["predicted_exposed_us"])) > 200  # both broadcasts at least


@pytest.mark.long
def test_overlapped_buckets_are_predicted_with_the_contention_that_was_calibrated(
    traces: Path, tmp_path: Path
) -> None:
    """Alone 160, 215.2 and 120 us, ready at 0, 104 and 190 us, when computing ends. Next to it each
    takes three times as long.

    The first has 160 - 190/3 = 96.7 left at 190 and ends at 286.7; the others follow alone: 286.7 +
    215.2 + 120 = 621.9.
    """

    def predicted(name: str, next_to: float) -> Report:
        timed = Contention(
            collective="all_reduce", devices=2, size_bytes=1 << 20, alone_us=(100.0,), two_in_flight_us=(200.0,),
            beside_compute_us=(100.0 * next_to,), compute_alone_us=(1.0,), compute_beside_us=(1.5,),
        )  # fmt: skip
        made = msgspec.structs.replace(
            calibration("all_reduce", "broadcast"), contention=(timed,) if next_to else ()
        )
        write_json(tmp_path / name, made)
        return reported(traces, Targets(calibration=tmp_path / name))

    idle, free, slowed = (
        predicted("idle.json", 0),
        predicted("free.json", 1),
        predicted("slowed.json", 3),
    )
    assert row_of(free)["predicted_transfer_us"] == pytest.approx(495.2, rel=1e-3)
    assert row_of(slowed)["predicted_transfer_us"] == pytest.approx(621.9, rel=1e-3)
    # the calibration's own rate
    assert row_of(slowed)["calibrated_gb_per_s"] == row_of(idle)["calibrated_gb_per_s"]
    assert "next to computing 3.00x" in str(row_of(slowed)["prediction_contention"])
    assert any("one next to computing 3.00x" in note for note in slowed.tables["predictions"].notes)
    assert any(
        "without contention, as on an idle machine" in note
        for note in idle.tables["predictions"].notes
    )


def compared(before: Path, after: Path) -> tuple[int, str, str]:
    """The status, the text, and the line of the traced step."""
    console = Console(file=StringIO(), width=200)
    status = print_comparison(before, after, None, "table", console)
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    _, steps = shown.split("Each cell's step (mean traced)")
    line = next(
        one for one in steps.splitlines() if one.startswith(f"{before.name} to {after.name} ")
    )
    return status, " ".join(shown.split()), line


def scaled_jobs(folder: Path, *factors: float) -> Path:
    """The made job traced several times, each into its own folder, all times longer by a factor."""
    for number, factor in enumerate(factors):
        write_ddp_job(folder / f"job{number}", factor=factor)
    return folder


@pytest.mark.long
def test_several_jobs_a_side_are_repeats_and_give_an_interval(tmp_path: Path) -> None:
    """Three jobs 1% apart against three 20% slower: a regression. Against themselves made again:
    none.
    """
    before = scaled_jobs(tmp_path / "before", 1.0, 1.01, 1.02)
    status, shown, line = compared(before, scaled_jobs(tmp_path / "slower", 1.2, 1.212, 1.224))
    assert (status, "1.200" in line) == (1, True)
    assert shown.startswith("Slower: before to slower +20% (+")
    status, shown, _ = compared(before, scaled_jobs(tmp_path / "again", 1.005, 1.01, 1.015))
    assert (status, shown.startswith("Same: before to again ")) == (0, True)


def test_copies_of_traces_are_reported_and_are_no_repeats(tmp_path: Path) -> None:
    """Two jobs a side, of which one is a copy of the other: its two files are left out."""
    before, after = scaled_jobs(tmp_path / "before", 1.0), scaled_jobs(tmp_path / "after", 1.2)
    for side in (before, after):
        shutil.copytree(side / "job0", side / "job1")
    status, shown, _ = compared(before, after)
    assert status == 3
    assert f"2 files of {before} were not read" in shown
    assert f"2 files of {after} were not read" in shown
    assert shown.count("Not judged: ") == 1


def no_collective(folder: Path, device: bool, ranks: int = 1) -> str:
    """Steps of 100 us; a kernel, or an operator, of 26 us in each. What the first screen says of
    communication.
    """
    for rank in range(ranks):
        events = [step(number, 100.0 * number, 100) for number in range(1, 4)]
        for number, begin in ((1, 110.0), (2, 210.0), (3, 310.0)):
            if device:
                events += [launch(number, begin - 5), on_device("gemm", begin, 26, number)]
            else:
                events.append(operator("aten::mm", begin, 26))
        write(
            folder,
            events,
            rank=rank,
            world_size=ranks,
            distributedInfo={"rank": rank, "world_size": ranks},
        )
    text = " ".join(" ".join(printed(folder)).split())
    return text[text.index("COST") : text.index("NEXT")].removeprefix("COST").strip()


@pytest.mark.long
@pytest.mark.parametrize(("device", "ranks"), [(True, 1), (False, 1), (True, 2)])
def test_a_trace_without_communication_costs_nothing(
    tmp_path: Path, device: bool, ranks: int
) -> None:
    none = "none: there is no collective in the traces"
    # a kernel is launched 5 us before it begins
    idle = (
        " of the 100 µs of a step devices compute 26.0 (26%), idle 74.0 (74%): for 69.0 µs the CPU had queued no work"
        if device
        else ""
    )
    assert no_collective(tmp_path, device, ranks) == f"{none}{idle}"


def test_collectives_of_a_single_rank_cost_what_they_take(tmp_path: Path) -> None:
    """Of a job of one rank: 20 us of a step of 100 us, and none of it is hidden."""
    for name, size in (("alone", 1), ("partner", 2)):
        events = [step(1, 100.0, 100), step(2, 200.0, 100)]
        for number, begin in ((1, 110.0), (2, 210.0)):
            events += [
                launch(number, begin),
                on_device("ncclDevKernel_AllReduce", begin + 5, 20, number),
            ]
        (tmp_path / name).mkdir()
        write(tmp_path / name, events, distributedInfo={"rank": 0, "world_size": size})
    alone, partner = (
        traces_verdict(analyze_traces([tmp_path / name])) for name in ("alone", "partner")
    )
    of_step = "communication takes 20.0 of the 100 µs of a step, 20%, waiting included: "
    assert f"{of_step}the one rank of the job has no other" in said(alone, "cost")
    assert f"{of_step}only one process was read" in said(partner, "cost")
    assert alone.setting.startswith("1 of 1 rank")


@pytest.mark.long
def test_ranks_answer_without_one_that_was_cut_off(tmp_path: Path) -> None:
    """Half of rank 0's file holds none of its kernels, nine tenths hold some; rank 3 is missing."""
    ranks = DATA / "v100x8_ddp_dlrm"
    for rank in (1, 2, 4, 5, 6, 7):
        shutil.copy(ranks / f"rank{rank}.json.gz", tmp_path)
    whole = analyze_traces([tmp_path])
    text = gzip.decompress((ranks / "rank0.json.gz").read_bytes())
    cut = tmp_path / "rank0.json"
    for part, read in ((0.5, 6), (0.9, 7)):
        cut.write_bytes(text[: int(part * len(text))])
        job = analyze_traces([tmp_path])
        verdict = traces_verdict(job)
        left_out = [fact for fact in verdict.limits if fact.label == "LEFT OUT"]
        assert [str(cut) in fact.lines[0] for fact in left_out] == [True] * (read == 6)
        assert verdict.setting.startswith(f"{read} of 8 ranks")
        assert "communication takes 5.3 of the 14.2 ms" in said(verdict, "cost")
        assert verdict.ledger == traces_verdict(whole).ledger
        assert known(ledger_table(job)).rows[0][0] == "mean of 6 ranks"
        assert job.cut_short == [str(cut)]


@pytest.mark.long
def test_a_trace_of_another_job_is_named_above_the_cost(tmp_path: Path) -> None:
    for rank in (0, 1):
        shutil.copy(DATA / f"v100x8_ddp_dlrm/rank{rank}.json.gz", tmp_path)
    stray = tmp_path / "stray.json.gz"
    shutil.copy(DATA / "a100x2_ddp_resnet50_rank0.json.gz", stray)
    verdict = traces_verdict(analyze_traces([tmp_path]))
    limit = verdict.limits[0]
    assert limit.label == "LEFT OUT"
    assert limit.lines[0].startswith(f"{stray} was left out, since it is of another job")
    assert "waiting included: ranks 2 to 7 of 8 are missing;" in said(verdict, "cost")


@pytest.mark.parametrize("whole", [True, False])
def test_traces_whose_communication_was_cut_off_name_the_file_to_read_again(
    tmp_path: Path, whole: bool
) -> None:
    """Rank 1's file ends before its kernels, so nothing shows that the job ran on a CPU."""
    events = sorted(
        ddp_trace(1, 2).trace["traceEvents"],
        key=lambda event: str(event.get("cat")).startswith(("kernel", "gpu")),
    )
    text = trace_text({**ddp_trace(1, 2).trace, "traceEvents": events})
    cut = tmp_path / "0_1.pt.trace.json"
    cut.write_text(text[: text.index('"cat": "kernel"')])
    cost = "not measured"
    if whole:
        write_trace(ddp_trace(0, 2).trace, tmp_path / "0_0.pt.trace.json")
        cost = "waiting included: only one process was read"
    verdict = traces_verdict(analyze_traces([tmp_path]))
    assert cost in said(verdict, "cost")
    assert verdict.setting.startswith("1 of 2 ranks")
    assert (verdict.limits[1].label == "LEFT OUT") == whole
    assert verdict.limits[0].label == "CUT"
    assert verdict.limits[0].lines[0].startswith(f"{cut}: ")
    assert f"Copy {cut} again" in said(verdict, "next")
    assert "CPU" not in verdict.setting


def test_files_that_are_no_traces_are_counted_and_the_first_is_named(tmp_path: Path) -> None:
    for rank in range(2):
        write_trace(ddp_trace(rank, 2).trace, tmp_path / f"0_{rank}.pt.trace.json")
    assert traces_verdict(analyze_traces([tmp_path])).limits == ()
    for name in ("a_note.json", "b_note.json"):
        (tmp_path / name).write_text('{"a": 1}')
    (limit,) = traces_verdict(analyze_traces([tmp_path])).limits
    assert limit.label == "NOT READ"
    assert limit.lines[0].startswith(f"2 files: {tmp_path}/a_note.json is not a torch.profiler")


@pytest.fixture
def two_jobs(tmp_path: Path) -> Path:
    for number, job in enumerate(("first", "second")):
        write_job(tmp_path / job, "rank", later_s=60.0 * number, process=1000 * number)
    return tmp_path


@pytest.mark.long
def test_tables_data_and_findings_name_the_job(two_jobs: Path) -> None:
    jobs = read(two_jobs)
    (steps,) = [table for table in job_tables(jobs) if table.title == "Steps"]
    assert steps.headings[:2] == ("job", "rank")
    count = len(analyze_traces(two_jobs / "first").steps)
    assert [row[0] for row in steps.rows] == ["first"] * count + ["second"] * count
    rows = list(csv.DictReader(io.StringIO(job_csv(jobs))))
    assert [row["job"] for row in rows] == [row[0] for row in steps.rows]
    content = json.loads(traces_json(jobs, None))
    assert content["jobs"] == ["first", "second"]
    for name in ("steps", "collectives", "findings"):
        assert {record["job"] for record in content[name]} == {"first", "second"}, name
    (said,) = [finding.message for finding in job_findings(jobs) if finding.code == "parallelism"]
    assert said.startswith("jobs first, second: "), "what two jobs have in common is said once"
    assert [line for line in printed(two_jobs) if line.startswith("Job ")] == [
        "Job first",
        "Job second",
    ]


def test_times_without_a_known_start_of_a_step_are_explained_once() -> None:
    """Devices' work before V100's only step is unknown; the export marks no step."""
    job = analyze_traces([DATA / "v100x8_ddp_dlrm"])
    (limit,) = traces_verdict(job).limits
    assert limit.label == "STEP START"
    assert "from its first device event to its last" in limit.text
    assert "*" not in str(job_tables({"": ReadJob(job)})[0])
    unmarked = analyze_traces([DATA / "nsys_two_ranks.sqlite.gz"])
    (limit,) = traces_verdict(unmarked).limits
    assert limit.label == "NO STEPS"
    assert "--steps-by" in limit.text


def test_a_cut_file_is_named_once_and_not_again_below(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = gzip.decompress((DATA / "a100x2_ddp_resnet50_rank0.json.gz").read_bytes())
    cut = tmp_path / "cut.json"
    cut.write_bytes(text[: len(text) * 2 // 3])
    screen = StringIO()
    console = Console(file=screen, width=200)
    assert print_traces([cut], "table", DEFAULT_LIMITS, console, Targets()) == 2
    lines = screen.getvalue().splitlines()
    naming = [line.split()[0] for line in lines if str(cut) in line]
    assert naming == ["CUT", "NEXT"]
    assert not capsys.readouterr().err
