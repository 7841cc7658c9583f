"""A run is resumed only under the conditions that its times depend on."""

import io
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from dpscope.launch.measuring.planned_jobs import plan_run
from dpscope.launch.measuring.run import run_sweep
from dpscope.launch.planning.manifest import host_findings, machine_difference, new_manifest, settings_difference
from dpscope.launch.planning.run_config import load_config
from dpscope.profiling.records.run import CellResult, DeviceState, Environment
from dpscope.profiling.store.errors import DpscopeError
from dpscope.profiling.store.files import write_json
from dpscope.profiling.store.folders import RunFolder

TINY = {"device": "cpu", "batch_size": "4", "steps": 4, "strategy": "single", "repeats": 1}


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunFolder:
    """A run whose one cell is measured, with a ring."""
    monkeypatch.setenv("NCCL_ALGO", "Ring")
    run = RunFolder(tmp_path / "run")
    described = plan_run(load_config(None, TINY), run.path)
    write_json(run.manifest_path, new_manifest(described.config, "cpu", described.threads_per_process, described.plan))
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


def test_other_settings_are_refused(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_ALGO", "Tree")
    with pytest.raises(
        DpscopeError, match=r"begun with NCCL_ALGO=Ring, now NCCL_ALGO=Tree: .* set it as it was, use --fresh"
    ):
        resume(run)
    monkeypatch.delenv("NCCL_ALGO")
    with pytest.raises(DpscopeError, match="begun with NCCL_ALGO=Ring, now unset"):
        resume(run)
    monkeypatch.setenv("NCCL_ALGO", "Ring")
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    with pytest.raises(DpscopeError, match="begun with GLOO_SOCKET_IFNAME unset, now GLOO_SOCKET_IFNAME=lo"):
        resume(run)


def test_other_threads_are_refused(run: RunFolder) -> None:
    threads = run.manifest().threads_per_process
    write_json(run.manifest_path, msgspec.structs.replace(run.manifest(), threads_per_process=threads + 3))
    said = rf"begun with {threads + 3} thread\(s\) a process, and this run has {threads}: "
    with pytest.raises(DpscopeError, match=said):
        resume(run)


def test_what_a_job_sets_itself_is_no_difference(run: RunFolder) -> None:
    """A manifest written by a job's process, under torchrun, holds what torchrun and dpscope set."""
    asked = run.manifest().environment
    in_job = {
        **asked.settings,
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "KINETO_LOG_LEVEL": "99",
        "OMP_NUM_THREADS": "1",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
    }
    assert settings_difference(asked, _with(asked, in_job)) is None
    ordered = _with(asked, {**in_job, "CUDA_DEVICE_ORDER": "FASTEST_FIRST"})
    assert settings_difference(asked, ordered) == ("CUDA_DEVICE_ORDER=PCI_BUS_ID, now CUDA_DEVICE_ORDER=FASTEST_FIRST")


def test_a_job_may_be_given_some_of_a_machines_gpus(run: RunFolder) -> None:
    here = run.manifest().environment
    assert machine_difference(here, here) is None
    a100, h100 = (DeviceState(index=0, name=name) for name in ("A100", "H100"))
    both = msgspec.structs.replace(here, accelerators=(a100, h100))
    one = msgspec.structs.replace(here, accelerators=(h100,))
    assert machine_difference(both, one) is None
    assert machine_difference(one, both) == "GPUs = H100, not A100, H100"
    assert machine_difference(here, one) == "GPUs = none, not H100"
    older = msgspec.structs.replace(here, torch_version="2.1")
    assert machine_difference(older, here) == f"torch = 2.1, not {here.torch_version}"


def test_hosts_of_one_job_that_differ_are_a_finding(run: RunFolder) -> None:
    first = run.manifest().environment
    assert host_findings(first, msgspec.structs.replace(first, hostname="n2", settings={})) == ()
    (finding,) = host_findings(first, msgspec.structs.replace(first, hostname="n2", cpu_count=first.cpu_count + 1))
    assert finding.code == "mixed_hosts"
    said = f"n2 is unlike {first.hostname}, on which the run began (cores = {first.cpu_count}, not {first.cpu_count + 1}): "
    assert finding.message.startswith(said)
    (finding,) = host_findings(first, msgspec.structs.replace(first, cpu_name="slow"))
    assert f"(processor = {first.cpu_name}, not slow)" in finding.message


def _with(environment: Environment, settings: dict[str, str]) -> Environment:
    return msgspec.structs.replace(environment, settings=settings)
