"""TensorBoard through its own HTTP endpoints, on servers that really run."""

import csv
import gzip
import shutil
from io import StringIO
from pathlib import Path

import pytest

from dpscope.analysis.output.tensorboard import write_plugin_copies
from dpscope.analysis.report.build import make_report
from dpscope.analysis.report.comparison_tables import FIRST_COLUMNS, comparison_csv
from dpscope.analysis.runs.run_data import load_run
from dpscope.profiling.mirrors.tensorboard_mirror import training_events
from dpscope.profiling.records.run import Cell
from dpscope.profiling.store.errors import DpscopeError
from tests.generated_traces.generator import dp_trace, write_trace
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
