"""A run is resumed only under the conditions that its times depend on."""

import io
from pathlib import Path

import msgspec
import pytest
import torch  # noqa: F401 (its first import starts a process, which these tests may not)
from rich.console import Console

from dpscope.launch.jobs.devices import Devices
from dpscope.launch.measuring.run import plan_run, run_sweep
from dpscope.launch.planning import cells, manifest
from dpscope.launch.planning.manifest import commit_findings, host_findings, new_manifest
from dpscope.launch.planning.run_config import load_config
from dpscope.launch.workload.data_files import CIFAR_RESNET
from dpscope.launch.workload.model_size import SIZES
from dpscope.profiling.records.run import Cell, CellResult, Commit
from dpscope.profiling.store.errors import DpscopeError
from dpscope.profiling.store.files import write_json
from dpscope.profiling.store.folders import RunFolder

TINY = {"device": "cpu", "batch_size": "4", "steps": 4, "strategy": "single", "repeats": 1}


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunFolder:
    """A run whose one cell is measured, with a ring."""
    monkeypatch.chdir(tmp_path)  # outside a checkout: git is not called
    monkeypatch.setenv("NCCL_ALGO", "Ring")
    run = RunFolder(tmp_path / "run")
    described = plan_run(load_config(None, TINY), run.path)
    write_json(
        run.manifest_path, new_manifest(described.config, "cpu", described.threads, described.plan)
    )
    (planned,) = described.plan
    result = CellResult(cell=planned.cell, repeat=0, status="ok", duration_s=1.0)
    write_json(run.repeat(planned.cell, 0).result_path, result)
    return run


@pytest.mark.parametrize(
    ("cell", "steps", "step_s", "traced_steps_of_all"),
    [
        # of 4 images 0.01 + 0.09 + 4 x 0.026 s, ten timed ones and 3 + 6 under the profiler
        (Cell(strategy="single", devices=1, batch_size=4), 10 + 9, 0.204, 4),
        # two processes take turns on one core and reduce in 0.01 + 0.14 s; traced and counted
        (Cell(strategy="ddp", devices=2, batch_size=4), 10 + 2 * 9, 2 * 0.204 + 0.15, 2 * 2 * 4),
    ],
)
def test_the_estimate_of_a_cell_by_hand(
    monkeypatch: pytest.MonkeyPatch, cell: Cell, steps: int, step_s: float, traced_steps_of_all: int
) -> None:
    for module in (manifest, cells):
        monkeypatch.setattr(module, "usable_cores", lambda: 1)
    counts = {"strategy": "single,ddp", "devices": "1,2", "warmup": 6, "traced_steps": 3}
    devices = Devices(kind="cpu", count=None)
    config = cells.resolve(load_config(None, {**TINY, **counts}), devices)
    estimate = manifest.estimate_cell(cell, config, "cpu", SIZES[CIFAR_RESNET])
    assert estimate.duration_s == pytest.approx(6.5 + steps * step_s)
    assert estimate.bytes == traced_steps_of_all * 110_000 + 20_000


def resume(run: RunFolder) -> None:
    assert run_sweep(load_config(None, TINY), run.path, False, Console(file=io.StringIO())).ok


def test_the_same_settings_resume_a_run(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    monkeypatch.setenv("OMP_NUM_THREADS", "7")  # of no effect: a worker sets its threads itself
    resume(run)


def test_other_variables_and_threads_are_refused(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as changed:
        changed.setenv("NCCL_ALGO", "Tree")
        with pytest.raises(
            DpscopeError,
            match=r"begun with NCCL_ALGO = Ring, not Tree: .* set it as it was, use --fresh",
        ):
            resume(run)
    threads = run.manifest().threads_per_process
    write_json(
        run.manifest_path, msgspec.structs.replace(run.manifest(), threads_per_process=threads + 3)
    )
    with pytest.raises(
        DpscopeError, match=f"begun with threads a process = {threads + 3}, not {threads}: "
    ):
        resume(run)


def test_hosts_of_one_job_that_differ_are_a_finding(run: RunFolder) -> None:
    first = run.manifest().environment
    assert host_findings(first, msgspec.structs.replace(first, hostname="n2", settings={})) == ()
    (finding,) = host_findings(
        first, msgspec.structs.replace(first, hostname="n2", cpu_count=first.cpu_count + 1)
    )
    assert finding.code == "mixed_hosts"
    expected = f"n2 is unlike {first.hostname}, on which the run began (cores = {first.cpu_count}, not {first.cpu_count + 1}): "
    assert finding.message.startswith(expected)
    (finding,) = host_findings(first, msgspec.structs.replace(first, cpu_name="slow"))
    assert f"(processor = {first.cpu_name}, not slow)" in finding.message


def test_a_run_that_goes_on_with_other_code_says_so() -> None:
    begun = Commit("a" * 40, "2030-01-01T00:00:00+00:00", changed=False)
    (finding,) = commit_findings(begun, msgspec.structs.replace(begun, changed=True))
    assert finding.code == "mixed_commits"
    assert finding.message == (
        "the run was begun with the code at commit aaaaaaaaaa and goes on with commit aaaaaaaaaa, changed."
    )
    assert (
        commit_findings(begun, begun)
        == commit_findings(None, begun)
        == commit_findings(begun, None)
        == ()
    )
