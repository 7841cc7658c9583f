"""TensorBoard through its own HTTP endpoints, on servers that really run."""

import gzip
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams.metadata import EXPERIMENT_TAG
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

from dpscope.analysis.figures.draw import FIGURES
from dpscope.analysis.output.tensorboard import plugin_copy, write_plugin_copies, write_tensorboard
from dpscope.analysis.report.build import Report
from dpscope.profiling.mirrors.tensorboard_mirror import EventLog
from dpscope.profiling.records.run import Cell
from dpscope.profiling.store.errors import DpscopeError
from tests.generated_traces.ddp import DdpOptions, ddp_trace
from tests.generated_traces.generator import dp_trace, write_trace
from tests.helpers.nsys_exports import convert
from tests.helpers.paths import DATA
from tests.helpers.tensorboard_pages import get, serving
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
def test_the_plugin_tells_the_truth_of_the_copies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its legend: Computation and Communication without their overlap, Overlapping, Other. Of a
    process, of one with two devices, and of an export of Nsight Systems.
    """
    boards = tmp_path / "boards"
    write_plugin_copies(A100, boards / "a100", 0, 0)
    generated = dp_trace(2, "nccl")
    original = write_trace(generated.trace, tmp_path / "0_0.pt.trace.json.gz")
    copies = write_plugin_copies(original, boards / "dp", 0, 0)
    assert [path.name for path in copies] == ["0_0.pt.trace.json.gz", "0_1.pt.trace.json.gz"]
    ranks = [ddp_trace(rank, 2, DdpOptions(straggler=1)) for rank in (0, 1)]
    export = convert([one.trace for one in ranks], tmp_path / "job.sqlite")
    monkeypatch.setattr(Report, "figures", {})  # of no interest here
    written = write_tensorboard([export], None, tmp_path / "written")
    (written / "traces of 2 ranks").rename(boards / "nsys")
    with serving(boards, tmp_path) as address:
        steps = overlap_by_step(address, "a100")
        # tests/data/README.md: hidden and exposed of steps 4, 5, 6
        for step, hidden, exposed in (
            (4, 1825.259, 10163.762),
            (5, 1760.419, 10539.610),
            (6, 3731.349, 18856.094),
        ):
            assert steps[str(step)]["0_0"][1:3] == pytest.approx([hidden, exposed], abs=1)
        dp_steps = overlap_by_step(address, "dp")
        of_export = overlap_by_step(address, "nsys")
    for rank, one in enumerate(ranks):
        for (_, number), expected in one.expected.steps.items():
            if not expected.partial_window:
                times = [expected.hidden_us, expected.exposed_us]
                assert of_export[str(number)][f"0_{rank}"][1:3] == pytest.approx(times, abs=1)
    compared = 0
    for (device, step), expected in generated.expected.steps.items():
        if expected.partial_window or expected.hidden_us is None or expected.exposed_us is None:
            continue
        found = dp_steps[str(step)][f"0_{device}"]
        assert found[1:3] == pytest.approx([expected.hidden_us, expected.exposed_us], abs=1)
        compared += 1
    assert compared == 4


def test_collectives_of_a_step_that_is_left_out_are_none_for_the_plugin(tmp_path: Path) -> None:
    """A range of gloo and a kernel of NCCL launched in step 2; those of step 1 stay."""
    events = []
    for step, start in ((1, 0.0), (2, 1000.0)):
        range_of = {"ph": "X", "pid": 1, "tid": 1, "dur": 900.0, "cat": "user_annotation"}
        events.append({**range_of, "name": f"ProfilerStep#{step}", "ts": start})
        events.append(
            {**range_of, "name": "gloo:all_reduce", "ts": start + 800, "dur": 400.0, "tid": 2}
        )
        kernel = {"ph": "X", "cat": "kernel", "name": "ncclDevKernel_AllReduce", "pid": 0, "tid": 7}
        events.append({**kernel, "ts": start + 950, "dur": 20.0, "args": {"correlation": step}})
        launch = {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 1}
        events.append({**launch, "ts": start + 500, "dur": 5.0, "args": {"correlation": step}})
    names = [
        str(event["name"])
        for event in plugin_copy({"traceEvents": events}, None, {2})["traceEvents"]
    ]
    assert names.count("nccl:all_reduce") == 1
    assert [name for name in names if "gloo" in name] == [
        "gloo:all_reduce",
        "range of gloo:all_reduce",
    ]
    assert [name for name in names if "Step" in name] == [
        "ProfilerStep#1",
        "part of ProfilerStep#2",
    ]


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


@pytest.mark.long
def test_trainings_alone(tmp_path: Path) -> None:
    records = [record("ddp-d2-b16", epoch=epoch, test_accuracy=50.0 + epoch) for epoch in (1, 2)]
    folder = write_tensorboard(
        [write_trained(tmp_path, [Cell("ddp", 2, 16)], records, epochs=2)], None
    )
    report = EventAccumulator(str(folder / "report")).Reload()
    tags = report.Tags()
    assert {"training_accuracy", "training_loss"} <= {*tags["images"], *tags["tensors"]}
    of_image = report.SummaryMetadata("training_loss").summary_description
    assert of_image.startswith(FIGURES["training_loss"].caption)
    assert "training/text_summary" in tags["tensors"]
    events = EventAccumulator(str(folder / "training" / "ddp-d2-b16" / "seed0")).Reload()
    assert [one.value for one in events.Scalars("accuracy_percent/test")] == [51.0, 52.0]
    described = events.SummaryMetadata("accuracy_percent/test").summary_description
    assert described == "Percent of the whole test set, after the epoch"


def test_hparams_know_which_settings_differ_and_what_metrics_mean(tmp_path: Path) -> None:
    with EventLog(tmp_path) as log:
        log.experiment({"devices": [1, 2], "model": ["lenet", "lenet"]}, {"step [ms]": "Median"})
    stored = EventAccumulator(str(tmp_path)).Reload().SummaryMetadata(EXPERIMENT_TAG)
    declared = HParamsPluginData.FromString(stored.plugin_data.content).experiment
    assert {one.name: one.differs for one in declared.hparam_infos} == {
        "devices": True,
        "model": False,
    }
    assert [one.description for one in declared.metric_infos] == ["Median"]
