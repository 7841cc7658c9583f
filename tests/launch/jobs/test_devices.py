"""GPUs that are present but unusable stop a run; `auto` is the CPU only on machines without
GPUs.
"""

import io
import json
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import NoReturn

import pytest
import torch
from rich.console import Console
from typer.testing import CliRunner

from dpscope.launch.commands import doctor
from dpscope.launch.commands.doctor import run_doctor
from dpscope.launch.contents import app
from dpscope.launch.jobs import devices
from dpscope.launch.jobs.all_reduce_check import all_reduce_once
from dpscope.launch.jobs.devices import Devices, resolve_devices
from dpscope.profiling.machine.environment import usable_device_states
from dpscope.profiling.store.errors import DpscopeError
from tests.helpers.nvml_records import TwoGpuNvml

CPU = Devices(kind="cpu", count=None)
without_gpus = pytest.mark.skipif(
    torch.cuda.is_available(), reason="about machines whose torch has no GPU"
)


def listing_smi(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver's nvidia-smi that lists two GPUs, first on the path."""
    program = folder / "nvidia-smi"
    program.write_text(
        "#!/bin/sh\necho 'GPU 0: NVIDIA L4 (UUID: GPU-1)'\necho 'GPU 1: NVIDIA L4 (UUID: GPU-2)'\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=":")


@pytest.mark.process
@without_gpus
def test_present_but_unusable_gpus_are_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listing_smi(tmp_path, monkeypatch)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    for requested in ("auto", "cuda"):
        with pytest.raises(DpscopeError, match="--device cpu") as caught:
            resolve_devices(requested)
        assert "this machine has 2 NVIDIA GPUs (seen by nvidia-smi" in str(caught.value)
        assert str(torch.version.cuda or "a CPU build") in str(caught.value)
    assert resolve_devices("cpu") == CPU
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")  # hidden on purpose
    assert resolve_devices("auto") == CPU
    with pytest.raises(DpscopeError, match="no GPU was found"):
        resolve_devices("cuda")


@pytest.mark.parametrize(
    ("version", "status"),
    [
        ("2.8.0", "ok"),
        ("2.10.0a0+nv25", "ok"),
        ("3.0", "ok"),
        ("2.7.1+cu128", "failed"),
        ("1.13.1", "failed"),
    ],
)
def test_the_doctor_reports_a_torch_that_is_too_old(
    monkeypatch: pytest.MonkeyPatch, version: str, status: str
) -> None:
    monkeypatch.setattr(torch, "__version__", version)
    check = doctor._torch()
    assert check.status == status
    assert check.detail.startswith(f"torch {version} on Python ")
    assert check.detail.endswith("; dpscope needs torch 2.8 or newer")
    assert ("install torch 2.8 or newer" in check.next_step) == (status == "failed")


def test_the_doctor_looks_at_everything() -> None:
    checks = run_doctor()
    assert checks["tracer"].status == "ok"
    assert "gloo available" in checks["backends"].detail
    assert checks["all-reduce"] == doctor.Check("ok", "4 MB between 2 ranks on the CPU by gloo")
    assert all(
        check.next_step for check in checks.values() if check.status in ("failed", "warning")
    )


def test_the_doctor_begins_with_a_verdict_and_prints_json(monkeypatch: pytest.MonkeyPatch) -> None:
    """An interface that this host does not have: gloo's ranks cannot meet."""
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "missing0")
    table = CliRunner().invoke(app, ["doctor"])
    assert (table.exit_code, table.output.splitlines()[0]) == (1, "Not ready: all-reduce failed.")
    assert all(line == line.rstrip() for line in table.stdout.splitlines())
    printed = CliRunner().invoke(app, ["doctor", "--format", "json"])
    answer = json.loads(printed.stdout)
    assert (printed.exit_code, answer["ready"]) == (1, False)
    (failed,) = (check for check in answer["checks"] if check["status"] == "failed")
    assert failed["name"] == "all-reduce"
    assert "missing0" in failed["detail"]
    assert "GLOO_SOCKET_IFNAME" in failed["next_step"]


def test_the_verdict_counts_warnings() -> None:
    fine, warned = doctor.Check("ok", "found"), doctor.Check("warning", "found", "do this")
    assert doctor.verdict({"torch": fine}) == "Ready to measure."
    assert doctor.verdict({"torch": fine, "disk": warned}) == "Ready, with 1 warning: disk."


def test_a_check_that_fails_itself_hides_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU in exclusive mode: torch lists it, and nothing runs on it."""

    def busy(*_: object, **__: object) -> NoReturn:
        raise RuntimeError(
            "CUDA error: all CUDA-capable devices are busy or unavailable\nCompile with `TORCH_USE_CUDA_DSA`"
        )

    monkeypatch.setattr(doctor, "_tracer", busy)
    monkeypatch.setattr(doctor, "_devices", busy)
    checks = run_doctor()
    failed = checks["tracer"]
    assert failed.status == "failed"
    assert (
        failed.detail
        == "RuntimeError: CUDA error: all CUDA-capable devices are busy or unavailable"
    )
    assert "compute mode" in failed.next_step
    assert checks["devices"] == failed
    assert (checks["torch"].status, checks["shared memory"].status, len(checks)) == ("ok", "ok", 11)


def usable_gpus(
    patch: pytest.MonkeyPatch, by_nvml: int, by_cuda: int, capability: tuple[int, int] = (9, 0)
) -> None:
    """torch with GPUs, which it counts by NVML until CUDA is started."""
    started = []
    patch.setattr(torch.cuda, "is_available", lambda: True)
    patch.setattr(torch.cuda, "init", lambda: started.append(True))
    patch.setattr(torch.cuda, "device_count", lambda: by_cuda if started else by_nvml)
    patch.setattr(torch.cuda, "get_device_name", lambda index: f"GPU model {index}")
    patch.setattr(torch.cuda, "get_device_capability", lambda index: capability)
    patch.setattr(torch.cuda, "get_arch_list", lambda: ["sm_75", "sm_80", "sm_90", "compute_120"])


def test_gpus_are_counted_by_cuda_not_by_nvml(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four GPUs in MIG mode: NVML has four, and a process may use one instance."""
    usable_gpus(monkeypatch, by_nvml=4, by_cuda=1)
    monkeypatch.setattr(devices, "present_gpus", lambda: devices.PresentGpus(4, "NVML", "580.0"))
    assert resolve_devices("auto") == Devices(kind="cuda", count=1)
    usable_gpus(monkeypatch, by_nvml=4, by_cuda=1)
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda index: SimpleNamespace(name=f"instance {index}")
    )
    assert [state.name for state in usable_device_states(None, None)] == ["instance 0"]
    usable_gpus(monkeypatch, by_nvml=4, by_cuda=1)
    monkeypatch.setattr(doctor, "present_gpus", lambda: None)
    assert doctor._devices().detail == "1 GPU: GPU model 0"
    assert doctor._peer_access().detail == "fewer than two GPUs"


@pytest.mark.parametrize(
    ("built_for", "capability", "runs"),
    [
        ("sm_75 sm_80 sm_86 compute_120", (7, 0), False),  # a V100 in builds for CUDA 13
        ("sm_75 sm_80 sm_86 compute_120", (6, 0), False),  # a P100
        ("sm_75 sm_80", (8, 9), True),  # within a major version
        ("sm_86", (8, 0), False),
        ("sm_90a", (9, 0), True),
        ("sm_100a", (10, 3), False),
        ("sm_100f", (10, 3), True),
        ("sm_80 compute_90", (12, 0), True),  # compiled at run time
        ("sm_80 compute_90a", (12, 0), False),
        ("sm_120", (12, 1), True),
        ("", (7, 0), True),  # not known
    ],
)
def test_a_gpu_without_kernels_is_refused(
    monkeypatch: pytest.MonkeyPatch, built_for: str, capability: tuple[int, int], runs: bool
) -> None:
    usable_gpus(monkeypatch, by_nvml=1, by_cuda=1, capability=capability)
    monkeypatch.setattr(torch.version, "hip", None)
    monkeypatch.setattr(torch.cuda, "get_arch_list", built_for.split)
    if runs:
        assert resolve_devices("cuda").count == 1
        return
    major, minor = capability
    with pytest.raises(
        DpscopeError, match=rf"no kernels for GPU 0 \(GPU model 0, {major}\.{minor}\)"
    ) as caught:
        resolve_devices("cuda")
    assert "\n" not in str(caught.value)


def test_gpus_that_do_not_start_are_refused_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing() -> NoReturn:
        raise RuntimeError(
            "CUDA unknown error - this may be due to an incorrectly set up environment\nmore"
        )

    usable_gpus(monkeypatch, by_nvml=1, by_cuda=1)
    monkeypatch.setattr(torch.cuda, "init", failing)
    monkeypatch.setattr(devices, "present_gpus", lambda: devices.PresentGpus(1, "NVML", "580.0"))
    with pytest.raises(
        DpscopeError, match=r"RuntimeError: CUDA unknown error .* environment; nvidia-smi"
    ):
        resolve_devices("cuda")
    assert doctor._devices().status == "failed"


@pytest.mark.parametrize("name", ["kfd", "dxg", "nvmap"])
def test_torch_is_asked_where_only_a_device_file_shows_gpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """ROCm on WSL and Jetson: no NVML, no nvidia-smi, no /dev/nvidia*, nothing under
    /sys/class/kfd.
    """
    usable_gpus(monkeypatch, by_nvml=1, by_cuda=1)
    monkeypatch.setattr(devices, "present_gpus", lambda: None)
    found = tuple(tmp_path / path.name for path in devices._DEVICE_FILES)
    monkeypatch.setattr(devices, "_DEVICE_FILES", found)
    assert name in {path.name for path in found}
    assert resolve_devices("auto") == CPU
    (tmp_path / name).touch()
    assert resolve_devices("auto") == Devices(kind="cuda", count=1)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert resolve_devices("auto") == CPU


def test_links_that_nvml_does_not_describe_are_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    lacking = partial(
        TwoGpuNvml, CurrPcieLinkGeneration=(None, None), CurrPcieLinkWidth=(None, None)
    )
    monkeypatch.setattr(doctor, "open_nvml", lacking)
    assert doctor._links().detail == "12 NVLinks, unknown PCIe link"


def test_an_amd_gpu_needs_no_nvml_and_reduces(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch lists it, NVML, nvidia-smi and /dev/nvidia* do not."""
    monkeypatch.setattr(doctor, "present_gpus", lambda: None)
    monkeypatch.setattr(doctor, "open_nvml", lambda: None)
    monkeypatch.setattr(torch.version, "hip", "6.4.43482")
    monkeypatch.setattr(torch.version, "cuda", None)
    usable_gpus(monkeypatch, by_nvml=1, by_cuda=1)
    monkeypatch.setattr(doctor, "all_reduce_once", lambda kind, count, _: f"{kind} on {count}")
    driver, reduced = doctor._driver(), doctor._all_reduce()
    assert (driver.status, "built for ROCm 6.4.43482" in driver.detail) == ("ok", True)
    assert (reduced.status, reduced.detail) == ("ok", "4 MB over 1 GPU by cuda on 1")

    def failing(*_: object) -> str:
        raise DpscopeError("rank 1: DistBackendError: NCCL error: unhandled cuda error")

    monkeypatch.setattr(doctor, "all_reduce_once", failing)
    failed = doctor._all_reduce()
    assert (failed.status, failed.detail) == (
        "failed",
        "rank 1: DistBackendError: NCCL error: unhandled cuda error",
    )
    assert "NCCL_DEBUG=INFO" in failed.next_step
    assert doctor._backends().status == (
        "ok" if torch.distributed.is_nccl_available() else "failed"
    )


@pytest.mark.process
def test_an_all_reduce_in_a_separate_job() -> None:
    """On the CPU: two processes, 1 + 2 = 3 in each, by gloo; a missing device fails with one
    line.
    """
    console = Console(quiet=True)
    assert all_reduce_once("cpu", 2, console) == "gloo"
    if not torch.cuda.is_available():
        with pytest.raises(DpscopeError, match="rank 0: "):
            all_reduce_once("cuda", 1, console)


@pytest.fixture
def amd_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """AMD's driver with a processor (node 0) and two GPUs, no other GPU."""
    nodes = tmp_path / "nodes"
    for node, lines in enumerate(
        ("cpu_cores_count 64\nsimd_count 0", "simd_count 912\nlds_size_in_kb 64", "simd_count 912")
    ):
        (nodes / str(node)).mkdir(parents=True)
        (nodes / str(node) / "properties").write_text(lines + "\n")
    (tmp_path / "kfd").touch()
    for variable in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(devices, "_AMD_NODES", nodes)
    monkeypatch.setattr(devices, "_AMD_DEVICE", tmp_path / "kfd")
    monkeypatch.setattr(devices, "_DEVICE_FILES", (tmp_path / "kfd",))
    monkeypatch.setattr(devices, "open_nvml", lambda: None)
    monkeypatch.setattr(devices, "_listed_by_nvidia_smi", lambda: 0)
    monkeypatch.setattr("glob.glob", lambda pattern: [])
    return nodes


@pytest.mark.parametrize(
    ("cuda", "hip", "fix"),
    [
        ("13.0", None, "(built for CUDA 13.0) cannot use them; install a ROCm build of torch;"),
        (None, None, "(a CPU build) cannot use them; install a ROCm build of torch;"),
        (None, "6.4", "(built for ROCm 6.4) cannot use them; let this user open /dev/kfd"),
    ],
)
def test_amds_gpus_that_torch_cannot_use_stop_a_run(
    amd_node: Path, monkeypatch: pytest.MonkeyPatch, cuda: str | None, hip: str | None, fix: str
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "cuda", cuda)
    monkeypatch.setattr(torch.version, "hip", hip)
    with pytest.raises(DpscopeError) as caught:
        resolve_devices("auto")
    assert "this machine has 2 AMD GPUs (seen by " in str(caught.value)
    assert fix in str(caught.value)
    assert "\n" not in str(caught.value)
    assert doctor._driver().status == "failed"
    assert "ROCm" in doctor._driver().next_step
    monkeypatch.setenv("HIP_VISIBLE_DEVICES", "-1")  # hidden on purpose
    assert resolve_devices("auto") == CPU


def test_what_torch_and_amds_driver_know_decides(
    amd_node: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usable_gpus(monkeypatch, by_nvml=2, by_cuda=2)
    usable = [True]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: usable[0])
    assert resolve_devices("auto") == Devices(kind="cuda", count=2)
    with monkeypatch.context() as patch:  # also without the driver's list
        patch.setattr(devices, "_AMD_NODES", amd_node / "missing")
        assert resolve_devices("auto") == Devices(kind="cuda", count=2)
    usable[0] = False
    with monkeypatch.context() as patch:  # a container with the host's /sys and no device
        patch.setattr(devices, "_AMD_DEVICE", amd_node / "missing")
        patch.setattr(devices, "_DEVICE_FILES", ())
        assert resolve_devices("auto") == CPU
    for node in (1, 2):  # a processor is left
        (amd_node / str(node) / "properties").unlink()
    assert resolve_devices("auto") == CPU


@pytest.mark.parametrize(
    ("visible", "unknown"),
    [
        ("7", "7"), ("0,7,1", "7"), ("0,0", "0"), ("GPU-cc", "GPU-cc"), ("cuda:0", "cuda:0"), ("0,,1", ""),
        ("1,0", None), ("GPU-bb", None), ("MIG-6f1c", None), (None, None),
    ],
)  # fmt: skip
def test_invalid_entries_of_cuda_visible_devices_are_named(
    monkeypatch: pytest.MonkeyPatch, visible: str | None, unknown: str | None
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    monkeypatch.setattr(devices, "open_nvml", TwoGpuNvml)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert devices.unknown_visible_device(2) == unknown
    with pytest.raises(DpscopeError) as caught:
        resolve_devices("auto")
    named = f"CUDA does not accept {unknown!r} on this machine, which has 2 GPUs" in str(
        caught.value
    )
    assert named == (unknown is not None)


def test_the_doctor_names_what_cuda_ignores_and_a_missing_nvml(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,7,1")
    monkeypatch.setattr(devices, "open_nvml", TwoGpuNvml)
    usable_gpus(monkeypatch, by_nvml=1, by_cuda=1)
    check = doctor._devices()
    assert (check.status, "CUDA ignores '7' in CUDA_VISIBLE_DEVICES" in check.detail) == (
        "warning",
        True,
    )
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    assert doctor._devices().status == "ok"
    # A container with NVIDIA_DRIVER_CAPABILITIES=compute: CUDA works, libnvidia-ml is missing.
    monkeypatch.setattr(doctor, "open_nvml", lambda: None)
    monkeypatch.setattr(
        doctor, "present_gpus", lambda: devices.PresentGpus(2, "/dev/nvidia*", None)
    )
    check = doctor._driver()
    assert (check.status, "NVIDIA_DRIVER_CAPABILITIES=compute,utility" in check.next_step) == (
        "warning",
        True,
    )
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert doctor._driver().status == "failed"


def test_checks_that_do_not_apply_are_one_line() -> None:
    printed = io.StringIO()
    no_gpu = doctor.Check("not applicable", "no GPU")
    checks = {"torch": doctor.Check("ok", "2.14"), "driver": no_gpu, "links": no_gpu}
    doctor.print_checks(checks, Console(file=printed, width=100))
    verdict, heading, torch_line, idle = printed.getvalue().splitlines()
    assert heading.split() == ["check", "status", "found", "what", "to", "do"]
    assert torch_line.split() == ["torch", "ok", "2.14"]
    assert torch_line == torch_line.rstrip()
    assert idle == "Not applicable here: driver, links (no GPU)"
    assert verdict == "Ready to measure."
