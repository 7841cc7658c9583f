"""TensorBoard through its own HTTP endpoints, on servers that really run."""

import csv
import gzip
import shutil
from io import StringIO
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from dpscope.analysis import analyze_traces
from dpscope.analysis.output.tensorboard import write_plugin_copies, write_tensorboard
from dpscope.analysis.report.build import make_report
from dpscope.analysis.report.comparison_tables import FIRST_COLUMNS, comparison_csv
from dpscope.analysis.runs.run_data import load_run
from dpscope.profiling.mirrors.tensorboard_mirror import training_events
from dpscope.profiling.records.run import Cell
from dpscope.profiling.store.errors import DpscopeError
from tests.generated_traces.generator import dp_trace, write_trace
from tests.helpers.paced_ranks import paced
from tests.helpers.paths import DATA, EXAMPLE_RUN
from tests.helpers.tensorboard_pages import get, hparams, running, scalars, serving
from tests.helpers.trainings import record, write_trained

A100 = DATA / "a100x2_ddp_resnet50_rank0.json.gz"
PLUGIN = "data/plugin/pytorch_profiler"


def overlap_by_step(address: str, run: str) -> dict[str, dict[str, list[float]]]:
    """The plugin's Distributed view: step -> worker -> computation, overlapping, communication,
    other.
    """
    spans = get(address, f"{PLUGIN}/spans", run=run, worker="All", view="Distributed")
    answer = get(address, f"{PLUGIN}/distributed/overlap", run=run, worker="All", span=spans[0])
    steps: dict[str, dict[str, list[float]]] = answer["data"]
    return steps


@pytest.mark.process
def test_the_plugin_tells_the_truth_of_the_copies(tmp_path: Path) -> None:
    """Its legend: Computation and Communication without their overlap, Overlapping, Other."""
    write_plugin_copies(A100, tmp_path / "a100", 0, 0)
    generated = dp_trace(2, "nccl")
    original = write_trace(generated.trace, tmp_path / "0_0.pt.trace.json.gz")
    copies = write_plugin_copies(original, tmp_path / "dp", 0, 0)
    assert [path.name for path in copies] == ["0_0.pt.trace.json.gz", "0_1.pt.trace.json.gz"]
    original.unlink()
    with serving(tmp_path, tmp_path) as address:
        steps = overlap_by_step(address, "a100")
        # tests/data/README.md: hidden and exposed of steps 4, 5, 6
        for step, hidden, exposed in (
            (4, 1825.259, 10163.762),
            (5, 1760.419, 10539.610),
            (6, 3731.349, 18856.094),
        ):
            assert steps[str(step)]["0_0"][1:3] == pytest.approx([hidden, exposed], abs=1)
        dp_steps = overlap_by_step(address, "dp")
    compared = 0
    for (device, step), expected in generated.expected.steps.items():
        if expected.partial_window or expected.hidden_us is None or expected.exposed_us is None:
            continue
        found = dp_steps[str(step)][f"0_{device}"]
        assert found[1:3] == pytest.approx([expected.hidden_us, expected.exposed_us], abs=1)
        compared += 1
    assert compared == 4


@pytest.mark.process
def test_the_plugin_has_the_steps_that_the_report_is_of(tmp_path: Path) -> None:
    """The A100's first step has no recorded start: the report stars it and takes means over the
    other two.
    """
    analysis = analyze_traces([A100])
    whole = analysis.steps[~analysis.steps["partial_window"]].set_index("step")
    folder = write_tensorboard([A100], None, tmp_path / "shown")
    (run,) = (one.name for one in folder.iterdir() if one.name != "report")
    with serving(folder, tmp_path) as address:
        steps = overlap_by_step(address, run)
        text = get(
            address, "data/plugin/text/text", run="report", tag="distributed_view/text_summary"
        )[0]["text"]
        (session,) = hparams(address, count=1)
    assert {int(step) for step in steps if step.isdigit()} == set(whole.index) == {5, 6}
    for step, workers in steps.items():
        if step.isdigit():
            computing, hidden, exposed, _ = workers["0_0"]
            own = whole.loc[int(step)]
            assert [hidden, exposed] == pytest.approx([own["hidden_us"], own["exposed_us"]], abs=1)
            assert computing + hidden == pytest.approx(own["compute_us"], abs=1)
    assert "first repeat alone" in text
    known = {value["name"]["tag"]: value["value"] for value in session["metricValues"]}
    ledger = analyze_traces([A100]).verdict.ledger
    assert ledger is not None
    parts = {f"comparison.csv/{name}_us": us for name, us in ledger.parts_us.items()}
    assert set(parts) <= set(known)
    assert {name: known[name] for name in parts} == pytest.approx(parts, rel=1e-6)


@pytest.mark.process
def test_a_run_and_its_trainings(tmp_path: Path) -> None:
    """What was not shown while a training ran is written now; what was stays as it is, since it may
    still be written to.
    """
    folder = Path(shutil.copytree(EXAMPLE_RUN, tmp_path / "run"))
    trained = [
        Cell(strategy="single", devices=1, batch_size=32),
        Cell(strategy="ddp", devices=2, batch_size=16),
    ]
    records = [
        record(cell.name, epoch=epoch, test_accuracy=50.0 + epoch)
        for cell in trained
        for epoch in (1, 2)
    ]
    live = training_events(write_trained(folder, trained, records, epochs=2), None)
    live.write(records[2:])
    with running("-m", "dpscope.launch.cli", "tensorboard", folder, "--port", "0") as address:
        runs = {f"training/{cell.name}/seed0" for cell in trained}
        runs |= {"report", "single-d1-b8", "dp-host-d2-b8", "ddp-d2-b8"}
        assert set(get(address, "data/runs", until=lambda found: len(found) >= len(runs))) == runs
        sessions = hparams(address, count=5)
        (ddp,) = [
            one
            for one in sessions
            if (one["hparams"]["strategy"], one["hparams"]["batch_size"]) == ("ddp", 8)
        ]
        metrics = {
            value["name"]["tag"].removeprefix("comparison.csv/"): value["value"]
            for value in ddp["metricValues"]
        }
        reported = make_report(load_run(folder))
        (row,) = [
            one
            for one in csv.DictReader(StringIO(comparison_csv(reported.comparison)))
            if one["cell"] == "ddp-d2-b8"
        ]
        shown = {name: value for name, value in metrics.items() if name in FIRST_COLUMNS}
        assert len(shown) >= 11
        # TensorBoard stores 32 bits of a number
        assert shown == pytest.approx({name: float(row[name]) for name in shown}, rel=1e-6)
        known_there = {name for name in FIRST_COLUMNS if row[name] != "NA"}
        assert known_there == set(shown)
        info = get(address, "data/plugin/hparams/experiment", {"experimentName": ""})
        names = {one["name"]["tag"] for one in info["metricInfos"]}
        assert {f"comparison.csv/{name}" for name in known_there} <= names
        timed = reported.run.cells["ddp-d2-b8"].step_samples()
        assert sum(len(steps_us) for steps_us in timed) == 20
        for repeat, steps_us in enumerate(timed):
            tag = f"timed_step_us/repeat{repeat}"
            series = scalars(address, "ddp-d2-b8", tag, len(steps_us))
            assert [step for _, step, _ in series] == list(range(len(steps_us)))
            assert [us for *_, us in series] == pytest.approx(list(steps_us), rel=1e-6)
        for run in runs:
            if run.startswith("training"):
                assert [
                    value for *_, value in scalars(address, run, "accuracy_percent/test", 2)
                ] == [51.0, 52.0]
        texts = get(address, "data/plugin/text/text", run="report", tag="comparison/text_summary")
        assert "ddp-d2-b8" in texts[0]["text"]
        images = get(address, "data/plugin/images/tags", until=lambda found: "report" in found)
        assert set(images["report"]) == set(reported.figures) >= {"step_split", "phases", "scaling"}
        assert get(address, f"{PLUGIN}/runs", until=lambda found: "ddp-d2-b8" in found["runs"])
    live.close()


@pytest.mark.long
def test_trainings_alone(tmp_path: Path) -> None:
    records = [record("ddp-d2-b16", epoch=epoch, test_accuracy=50.0 + epoch) for epoch in (1, 2)]
    folder = write_tensorboard(
        [write_trained(tmp_path, [Cell("ddp", 2, 16)], records, epochs=2)], None
    )
    tags = EventAccumulator(str(folder / "report")).Reload().Tags()
    assert {"training_accuracy", "training_loss"} <= {*tags["images"], *tags["tensors"]}
    assert "training/text_summary" in tags["tensors"]
    events = EventAccumulator(str(folder / "training" / "ddp-d2-b16" / "seed0")).Reload()
    assert [one.value for one in events.Scalars("accuracy_percent/test")] == [51.0, 52.0]


@pytest.mark.parametrize("damage", ["cut", "overwritten", "nested"])
def test_a_damaged_trace_is_not_copied(tmp_path: Path, damage: str) -> None:
    broken = tmp_path / "0_0.pt.trace.json.gz"
    whole = A100.read_bytes()
    broken.write_bytes(
        {
            "cut": whole[:100_000],
            "overwritten": whole[:50_000] + b"\xff" * 1_000 + whole[51_000:],
            "nested": gzip.compress(b'{"traceEvents": ' + b"[" * 100_000),
        }[damage]
    )
    with pytest.raises(DpscopeError, match="cannot be copied"):
        write_plugin_copies(broken, tmp_path / "copies", 0, 0)
    assert not list((tmp_path / "copies").glob("*"))


def test_the_plugin_lacks_the_steps_that_averages_leave_out(tmp_path: Path) -> None:
    """Step 0 has no recorded start, and step 2 takes a second."""
    paced(tmp_path / "job", [(40.0, 40.0)] * 4, [10.0, 1_000.0, 10.0, 10.0])
    files = sorted((tmp_path / "job").glob("*.json"))
    folder = write_tensorboard(files, None, tmp_path / "shown")
    copies = [
        gzip.decompress(one.read_bytes()).decode() for one in folder.rglob("*.pt.trace.json.gz")
    ]
    assert len(copies) == 2
    for copy in copies:
        assert {number for number in range(5) if f'"ProfilerStep#{number}"' in copy} == {1, 3, 4}
