"""A run is resumed only under the conditions that its times depend on."""

import io
from pathlib import Path

import msgspec
import pytest
import torch  # noqa: F401 (its first import starts a process, which these tests may not)
from rich.console import Console

from dpscope.launch.measuring.run import plan_run, run_sweep
from dpscope.launch.planning.manifest import commit_findings, host_findings, new_manifest
from dpscope.launch.planning.run_config import load_config
from dpscope.profiling.records.run import CellResult, Commit
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
