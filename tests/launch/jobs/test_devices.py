"""GPUs that are present and unusable stop a run; only real absence means the CPU."""

from pathlib import Path

import pytest
import torch

from dpscope.launch.commands.doctor import run_doctor
from dpscope.launch.jobs import devices
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
        assert "2 GPU(s) are present (seen by nvidia-smi" in message
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


def test_the_doctor_looks_at_everything() -> None:
    checks = {check.name: check for check in run_doctor()}
    assert {"devices", "driver", "backends", "peer access", "shared memory", "tracer", "disk"} <= set(checks)
    assert checks["tracer"].status == "ok"
    assert "gloo available" in checks["backends"].detail
    assert all(check.next_step for check in checks.values() if check.status in ("failed", "warning"))
