"""GPUs that are present and unusable stop a run; only real absence means the CPU."""

from pathlib import Path

import pytest
import torch
from rich.console import Console

from dpscope.launch.commands import doctor
from dpscope.launch.commands.doctor import run_doctor
from dpscope.launch.jobs import devices
from dpscope.launch.jobs.all_reduce_check import all_reduce_once
from dpscope.launch.jobs.devices import Devices, resolve_devices
from dpscope.profiling.store.errors import DpscopeError

without_gpus = pytest.mark.skipif(torch.cuda.is_available(), reason="about machines whose torch has no GPU")


def listing_smi(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver's nvidia-smi that lists two GPUs, first on the path."""
    program = folder / "nvidia-smi"
    program.write_text("#!/bin/sh\necho 'GPU 0: NVIDIA L4 (UUID: GPU-1)'\necho 'GPU 1: NVIDIA L4 (UUID: GPU-2)'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=":")


@pytest.mark.process
@without_gpus
def test_present_but_unusable_gpus_are_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listing_smi(tmp_path, monkeypatch)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    for requested in ("auto", "cuda"):
        with pytest.raises(DpscopeError) as caught:
            resolve_devices(requested)
        message = str(caught.value)
        assert "this machine has 2 GPUs (seen by nvidia-smi" in message
        assert str(torch.version.cuda or "a CPU build") in message
        assert "--device cpu" in message
    assert resolve_devices("cpu") == Devices(kind="cpu", count=None)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")  # hidden on purpose
    assert resolve_devices("auto") == Devices(kind="cpu", count=None)


@without_gpus
def test_cuda_without_any_gpu_is_an_error() -> None:
    if devices.present_gpus() is not None:
        pytest.skip("there is a GPU here")
    with pytest.raises(DpscopeError, match="no GPU was found"):
        resolve_devices("cuda")
    assert resolve_devices("auto").kind == "cpu"


@pytest.mark.parametrize(
    ("version", "status"),
    [("2.8.0", "ok"), ("2.10.0a0+nv25", "ok"), ("3.0", "ok"), ("2.7.1+cu128", "failed"), ("1.13.1", "failed")],
)
def test_the_doctor_tells_a_torch_that_is_too_old(monkeypatch: pytest.MonkeyPatch, version: str, status: str) -> None:
    monkeypatch.setattr(torch, "__version__", version)
    check = doctor._torch()
    assert check.status == status
    assert check.detail.startswith(f"torch {version} on Python ")
    assert check.detail.endswith("; dpscope needs torch 2.8 or newer")
    assert ("install torch 2.8 or newer" in check.next_step) == (status == "failed")


def test_the_doctor_looks_at_everything() -> None:
    checks = {check.name: check for check in run_doctor()}
    named = {"devices", "driver", "backends", "all-reduce", "peer access", "shared memory", "tracer", "disk"}
    assert named <= set(checks)
    assert checks["tracer"].status == "ok"
    assert "gloo available" in checks["backends"].detail
    assert all(check.next_step for check in checks.values() if check.status in ("failed", "warning"))


def test_an_amd_gpu_needs_no_nvml(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch has it, NVML, nvidia-smi and /dev/nvidia* do not: nothing fails for that."""
    monkeypatch.setattr(doctor, "present_gpus", lambda: None)
    monkeypatch.setattr(doctor, "open_nvml", lambda: None)
    monkeypatch.setattr(torch.version, "hip", "6.4.43482")
    monkeypatch.setattr(torch.version, "cuda", None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(doctor, "all_reduce_once", lambda kind, count, _: f"{kind} on {count}")
    driver, reduced = doctor._driver(), doctor._all_reduce()
    assert (driver.status, "built for ROCm 6.4.43482" in driver.detail) == ("ok", True)
    assert (reduced.status, reduced.detail) == ("ok", "4 MB over 1 GPU by cuda on 1")
    assert doctor._backends().status == ("ok" if torch.distributed.is_nccl_available() else "failed")


def test_an_all_reduce_that_fails_is_told_in_its_own_words(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: object) -> str:
        raise DpscopeError("rank 1: DistBackendError: NCCL error: unhandled cuda error")

    monkeypatch.setattr(doctor, "all_reduce_once", failing)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    check = doctor._all_reduce()
    assert (check.status, check.detail) == ("failed", "rank 1: DistBackendError: NCCL error: unhandled cuda error")
    assert "NCCL_DEBUG=INFO" in check.next_step


@pytest.mark.process
def test_an_all_reduce_in_a_job_of_its_own() -> None:
    """The same job on the CPU: two processes, 1 + 2 = 3 everywhere, by gloo; a device that is not there fails in one line."""
    console = Console(quiet=True)
    assert all_reduce_once("cpu", 2, console) == "gloo"
    if not torch.cuda.is_available():
        with pytest.raises(DpscopeError, match="rank 0: "):
            all_reduce_once("cuda", 1, console)


@pytest.mark.parametrize(
    ("usable", "kind", "count"),
    [(True, "cuda", 2), (False, "cpu", None)],  # AMD's device file is there with its driver, also without a GPU
)
def test_auto_takes_amds_gpus_which_torch_alone_knows(
    monkeypatch: pytest.MonkeyPatch, usable: bool, kind: str, count: int | None
) -> None:
    exists = Path.exists
    monkeypatch.setattr(Path, "exists", lambda path: str(path) == "/dev/kfd" or exists(path))
    monkeypatch.setattr(devices, "present_gpus", lambda: None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: usable)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    found = resolve_devices("auto")
    assert (found.kind, found.count) == (kind, count)
