"""The worker started by hand, by path, under torchrun."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from dpscope.analysis.report.build import make_report
from dpscope.analysis.runs.run_data import load_run
from dpscope.profiling.machine.cores import usable_cores
from dpscope.profiling.store.folders import RunFolder
from tests.helpers.paths import ROOT
from tests.helpers.ranks import free_port

WORKER = ROOT / "launch" / "worker.py"
TINY = {
    "model": "tiny_models:tiny", "device": "cpu", "steps": 3, "traced_steps": 1, "batch_size": "2", "strategy": "ddp",
    "devices": "2,2x1",
}  # fmt: skip


def assigned(out: Path, cell: str, repeat: int = 0, **options: object) -> str:
    """The argument of a worker that measures a cell."""
    assignment = {
        "task": "measure",
        "out": str(out),
        "cell": cell,
        "repeat": repeat,
        "options": {**TINY, **options},
        "nodes": 2,
    }
    return json.dumps(assignment)


def by_hand(
    out: Path, processes: int, cell: str, repeat: int = 0, **options: object
) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "dpscope.launch.torchrun", f"--nproc-per-node={processes}"]
    return subprocess.run(
        [*command, str(WORKER), assigned(out, cell, repeat, **options)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of a cell that was started by hand."""
    folder = tmp_path_factory.mktemp("by_hand") / "run"
    ended = by_hand(folder, 2, "ddp-d2-b2")
    assert ended.returncode == 0, ended.stderr
    assert f"Done: {folder}/cells/ddp-d2-b2/repeat0/result.json" in ended.stdout
    return folder


def test_a_cell_started_by_hand_is_a_run_that_others_must_fit(out: Path) -> None:
    run = RunFolder(out)
    done = {
        planned.cell.name: len(run.done_repeats(planned.cell)) for planned in run.manifest().plan
    }
    assert done == {"ddp-d2-b2": 1, "ddp-d2-n2-b2": 0}
    other = by_hand(out, 2, "ddp-d2-b2", repeat=1, momentum=0.5)
    assert other.returncode != 0
    assert "holds a run with --momentum 0.9, not --momentum 0.5" in other.stderr
    assert (
        "Traceback"
        not in other.stderr.partition("ChildFailedError")[0].partition("torch/distributed")[0]
    )


def test_two_torchruns_measure_one_cell(out: Path) -> None:
    """Two nodes, both this host: what each saves is its own, and together they are one run."""
    # by an attempt that was killed, its rank 1 on node 0
    begun = out / "cells" / "ddp-d2-n2-b2" / "repeat0"
    for name in (
        "rank_0_1.json",
        "samples_0_1.parquet",
        "traces/0_1.pt.trace.json.gz",
        "counters/0_1.json",
    ):
        (begun / name).parent.mkdir(parents=True, exist_ok=True)
        (begun / name).write_text("left")
    torchrun = [sys.executable, "-m", "dpscope.launch.torchrun", "--nnodes=2", "--nproc-per-node=1"]
    meeting = ["--master-addr=127.0.0.1", f"--master-port={free_port()}"]
    program = [str(WORKER), assigned(out, "ddp-d2-n2-b2")]
    nodes = [
        subprocess.Popen(
            [*torchrun, *meeting, f"--node-rank={node}", *program],
            stderr=subprocess.PIPE,
            text=True,
        )
        for node in range(2)
    ]
    try:
        errors = [node.communicate(timeout=100)[1] for node in nodes]
    finally:
        for node in nodes:
            node.kill()
    assert [node.returncode for node in nodes] == [0, 0], errors
    run = RunFolder(out)
    planned = run.manifest().plan[-1]
    ((repeat, folder),) = run.done_repeats(planned.cell)
    assert (planned.cell.name, repeat) == ("ddp-d2-n2-b2", 0)
    assert [
        (rank.rank, rank.node, rank.local_rank, rank.world_size) for rank in folder.ranks()
    ] == [(0, 0, 0, 2), (1, 1, 0, 2)]
    first, second = folder.ranks()
    assert first.environment is None
    assert (*first.findings, *second.findings) == ()  # of hosts that are alike
    assert second.environment is not None
    assert second.environment.hostname == run.manifest().environment.hostname
    assert [path.name.partition(".")[0] for path in folder.traces()] == ["0_0", "1_1"]
    assert [path.name.partition(".")[0] for path in folder.counters_traces()] == ["0_0", "1_1"]
    assert not list(begun.rglob("*0_1.*"))
    # Each node's processes share that node's cores alone, at least two shares of them.
    assert first.threads == second.threads == max(1, usable_cores() // 2)
    report = make_report(load_run(out))
    row = report.comparison.table.set_index("cell").loc["ddp-d2-n2-b2"]
    assert (row.devices, row.step_count) == (2, 3)
    assert row.communication_us > 0
    assert row.transfer_us > 0  # of collectives matched over both nodes
    assert report.printed.sound
