"""Variants in real runs: what each promises is what its trace shows, and what overlap saves."""

import gzip
import io
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from dpscope.analysis.runs.run_data import RunData, load_run
from dpscope.analysis.runs.traffic_check import check_traffic
from dpscope.analysis.runs.variant_savings import variant_findings, variant_savings
from dpscope.analysis.stats.samples import Estimate
from dpscope.analysis.traces.ranks.job import Job
from dpscope.analysis.traces.ranks.trace_analysis import analyze_traces
from dpscope.launch.measuring.run import run_sweep
from dpscope.launch.planning.run_config import load_config
from dpscope.profiling.records import range_names as phases
from dpscope.profiling.records.finding import Finding
from dpscope.profiling.records.run import Cell, CellOptions
from tests.helpers.light_torchrun import light_jobs
from tests.helpers.run_cells import traced_table, with_tables

TINY: dict[str, object] = {
    "device": "cpu", "model": "tiny_models:layered", "devices": "2", "batch_size": "8", "steps": 5, "traced_steps": 1,
    "repeats": 1, "samples": 64, "timeout": 90, "calibrate": False,
}  # fmt: skip
TRACED = 2  # one more than requested

# Gradients in the order in which backward makes them: the last layer's 8,192 B, two of 1,048,576 B,
# 397,312 B.
FIRST, MIDDLE, LAST = 8_192 + 1_048_576, 1_048_576, 4_096 + 393_216
ALL = FIRST + MIDDLE + LAST
BUFFERS = [2 * 2_048, 8]
COMPRESSED = (
    "bucket-1mb-hook-bf16-buffers-off-accumulate-2-gradient_as_bucket_view-true-static_graph-true"
)


def measured(out: Path, **flags: object) -> RunData:
    with light_jobs():
        outcome = run_sweep(
            load_config(None, {**TINY, **flags}), out, False, Console(file=io.StringIO())
        )
    assert outcome.ok, [(result.cell.name, result.message) for result in outcome.results]
    return load_run(out)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, RunData]:
    settings: dict[str, dict[str, object]] = {
        "buckets": {"strategy": "ddp", "overlap": "on,off"},
        "compressed": {
            "strategy": "dp,ddp", "accumulate": 2, "comm_hook": "bf16", "bucket_mb": 1, "broadcast_buffers": "off",
            "ddp_args": "gradient_as_bucket_view=true static_graph=true",
        },
    }  # fmt: skip
    return {
        name: measured(tmp_path_factory.mktemp(name) / "run", **flags)
        for name, flags in settings.items()
    }


@pytest.fixture
def buckets(runs: dict[str, RunData]) -> RunData:
    return runs["buckets"]


@pytest.fixture
def compressed(runs: dict[str, RunData]) -> RunData:
    return runs["compressed"]


def bytes_per_step(data: Job, kind: str) -> list[list[int]]:
    """Sorted sizes of one kind of collective for every rank and traced step."""
    own = data.collectives[data.collectives["step"].notna() & (data.collectives["kind"] == kind)]
    return [
        sorted(int(size) for size in group) for _, group in own.groupby(["rank", "step"])["bytes"]
    ]


def assert_moved(data: Job, reduced: list[int], broadcast: list[int]) -> None:
    # Not the spans of DDP's counters: on a busy host threads may wait for longer than these
    # all-reduces take.
    wrong = ("trace_incomplete", "variant_not_kept")
    assert [finding.message for finding in data.findings if finding.code in wrong] == []
    assert bytes_per_step(data, "all_reduce") == [sorted(reduced)] * 2 * TRACED
    assert bytes_per_step(data, "broadcast") == (
        [sorted(broadcast)] * 2 * TRACED if broadcast else []
    )
    assert len(data.counter_checks) == 2
    assert all(check.steps > 0 and check.buckets_equal for check in data.counter_checks)


def traces_of(run: RunData, name: str) -> Job:
    return analyze_traces(run.folder.repeat(run.cells[name].cell, 0).traces())


def events_named(run: RunData, name: str, event: str) -> int:
    (path, _) = run.folder.repeat(run.cells[name].cell, 0).traces()
    found: int = gzip.decompress(path.read_bytes()).count(event.encode())
    return found


def test_variants_move_what_they_promise(runs: dict[str, RunData]) -> None:
    """One bucket without overlap; small buckets of half the bytes once a step, without buffers;
    views save copying back.
    """
    buckets, compressed = runs["buckets"], runs["compressed"]
    assert list(buckets.cells) == ["ddp-d2-b8", "ddp-d2-b8-overlap-off"]
    assert_moved(buckets.cells["ddp-d2-b8"], [FIRST, MIDDLE + LAST], BUFFERS)
    assert_moved(buckets.cells["ddp-d2-b8-overlap-off"], [ALL], BUFFERS)
    small = compressed.cells[f"ddp-d2-b8-{COMPRESSED}"]
    assert_moved(small, [FIRST // 2, MIDDLE // 2, LAST // 2], [])
    copying = "reducer::copy_bucket_to_grad"
    assert events_named(buckets, "ddp-d2-b8", copying) >= 6 * TRACED  # parameters
    assert events_named(compressed, f"ddp-d2-b8-{COMPRESSED}", copying) == 0


def test_a_step_of_micro_batches_is_one_step(compressed: RunData) -> None:
    for name in ("dp-host-d2-b8-accumulate-2", f"ddp-d2-b8-{COMPRESSED}"):
        data = compressed.cells[name]
        assert data.communication_known
        assert (data.samples["samples"] == 8 * (2 if data.cell.strategy == "dp-host" else 1)).all()
        counts = traces_of(compressed, name).summaries[0].range_counts
        assert set(counts[phases.FORWARD].values()) == set(counts[phases.BACKWARD].values()) == {2}
        assert set(counts[phases.OPTIMIZER].values()) == set(counts[phases.DATA].values()) == {1}
        assert len(counts[phases.OPTIMIZER]) == TRACED
    host = traces_of(compressed, "dp-host-d2-b8-accumulate-2").summaries[0].range_counts
    # DataParallel saves nothing by it
    assert set(host[phases.replica_range(phases.REPLICATE, 1)].values()) == {2}
    assert set(host[phases.replica_range(phases.GRADIENT_REDUCE, 1)].values()) == {2}


def judged(run: RunData, name: str, options: CellOptions) -> list[Finding]:
    """The findings on a cell's trace, read as that of a cell with other options."""
    data, analysis = run.cells[name], traces_of(run, name)
    tables = analysis.tables
    cell = Cell(strategy=data.cell.strategy, devices=2, batch_size=8, options=options)
    sizes, ranges = data.ranks[0][1].model, [summary.range_counts for summary in analysis.summaries]
    return check_traffic(cell, sizes, tables.steps, tables.collectives, ranges, tables.copies)


def test_a_trace_that_breaks_its_promise_is_reported(buckets: RunData, compressed: RunData) -> None:
    plain = "ddp-d2-b8"
    assert judged(buckets, plain, CellOptions()) == []
    (found,) = judged(buckets, plain, CellOptions(overlap="off"))
    assert (found.code, found.severity) == ("variant_not_kept", "error")
    assert "one all-reduce of all gradients a step, the trace shows 2 in a step" in found.message
    (found,) = judged(buckets, plain, CellOptions(broadcast_buffers="off"))
    assert (
        "no broadcast of buffers, the trace shows broadcasts of 4,104 B in a step" in found.message
    )
    (found,) = judged(buckets, plain, CellOptions(comm_hook="fp16"))
    assert found.code == "trace_incomplete"
    assert f"{ALL // 2:,} B a step (the gradients as fp16)" in found.message
    (found,) = judged(compressed, f"ddp-d2-b8-{COMPRESSED}", CellOptions())
    assert (found.code, f"{ALL:,} B" in found.message) == ("trace_incomplete", True)
    (found,) = judged(compressed, "dp-host-d2-b8-accumulate-2", CellOptions(accumulate=4))
    assert "in every step, 4 times, the trace shows 2" in found.message


def planted(run: RunData, **step_us: float) -> RunData:
    """The run with ten timed steps for each cell, all but equally long; named by the cells'
    options.
    """
    cells = {}
    for name, data in run.cells.items():
        middle = step_us[data.cell.variant.replace("-", "_") or "plain"]
        steps = [middle + offset for offset in (-2, -1, 0, 0, 0, 0, 0, 0, 1, 2)]
        rows = (
            {"repeat": index // 5, "step": index, "step_us": step_us}
            for index, step_us in enumerate(steps)
        )
        samples = traced_table("samples", rows).assign(measuring_pass="timed", rank=0, samples=8)
        # offsets -2, -1, 0, 0, 0, then 0, 0, 0, 1, 2
        cells[name] = with_tables(data, samples=samples)
    return replace(run, cells=cells)


def assert_around(estimate: Estimate, value: float, distance: float) -> None:
    assert estimate.low is not None
    assert estimate.high is not None
    assert value - distance <= estimate.low <= value <= estimate.high <= value + distance


def test_what_overlap_saves(buckets: RunData) -> None:
    """120 ms without overlap, 90 ms with it: 30 ms, a quarter."""
    run = planted(buckets, plain=90e3, overlap_off=120e3)
    (saving,) = variant_savings(run)
    assert (saving.having, saving.without) == ("ddp-d2-b8", "ddp-d2-b8-overlap-off")
    assert saving.saved_us.value == pytest.approx(30e3)
    assert saving.saved_share.value == pytest.approx(0.25)
    assert saving.saved_us.count == saving.saved_share.count == 10
    assert_around(saving.saved_us, 30e3, 4.0)
    assert_around(saving.saved_share, 0.25, 1e-4)
    (finding,) = variant_findings(run)
    assert (finding.code, finding.severity) == ("variant_saves", "info")
    assert (
        "with overlap a step changes by -30.0 ms, -25.0% (95% interval -30.0 ms" in finding.message
    )
    assert finding.message.endswith(": faster")
    assert "10 steps" in finding.message
    (costs,) = variant_findings(planted(buckets, plain=150e3, overlap_off=120e3))
    assert "changes by +30.0 ms, +25.0% (95% interval +30.0 ms" in costs.message
    assert costs.message.endswith(": slower")
    (none,) = variant_findings(planted(buckets, plain=120e3, overlap_off=120e3))
    assert "no significant difference" in none.message
    first = {name: data.tables.samples.take(np.arange(4)) for name, data in run.cells.items()}
    few = replace(
        run, cells={name: with_tables(run.cells[name], samples=own) for name, own in first.items()}
    )
    (unknown,) = variant_findings(few)
    assert "too few steps or repeats to tell" in unknown.message
