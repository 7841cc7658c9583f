"""Values are unknown without bindings, driver, function or GPU; recorded answers are replayed."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dpscope.profiling.machine.environment import device_states
from dpscope.profiling.machine.interconnect import interconnect
from dpscope.profiling.machine.nvml import (
    NvmlRecorder,
    driver_version,
    gpu_handles,
    open_nvml,
    query,
)
from tests.helpers.nvml_records import ReplayedNvml, TwoGpuNvml


class DriverlessError(Exception):
    pass


class NVMLLibraryMismatchError(Exception):
    """The name that pynvml gives it; it is no NVMLError."""


def failing(*arguments: Any) -> Any:
    raise DriverlessError("driver not loaded")


def test_without_bindings_or_driver_there_is_no_nvml(monkeypatch: pytest.MonkeyPatch) -> None:
    bindings = SimpleNamespace(nvmlInit=lambda: None)
    monkeypatch.setitem(sys.modules, "pynvml", bindings)
    assert open_nvml() is bindings
    bindings.nvmlInit = failing
    assert open_nvml() is None
    monkeypatch.setitem(sys.modules, "pynvml", None)  # as if it were not installed
    assert open_nvml() is None


def test_values_without_an_answer_are_unknown() -> None:
    nvml = TwoGpuNvml(Name=(None, b"NVIDIA L4"))
    assert query(nvml, "nvmlDeviceGetName", 0) is None
    assert query(nvml, "nvmlDeviceGetName", 1) == "NVIDIA L4"
    assert query(SimpleNamespace(), "nvmlDeviceGetNewest", 0) is None  # older bindings
    assert query(None, "nvmlDeviceGetCount") is None
    assert gpu_handles(None) == []
    assert gpu_handles(SimpleNamespace(nvmlDeviceGetCount=failing)) == []
    assert (driver_version(TwoGpuNvml()), driver_version(None)) == ("550.54.15", None)


@pytest.mark.parametrize(
    "error", [NVMLLibraryMismatchError("Unversioned function called"), OSError(5), ValueError()]
)
def test_no_error_of_the_bindings_ends_what_asked(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """A driver without nvmlDeviceGetComputeRunningProcesses_v3: other processes are unknown, the
    rest of the state is not.
    """

    def mismatched(*arguments: Any) -> Any:
        raise error

    nvml = TwoGpuNvml()
    vars(nvml)["nvmlDeviceGetComputeRunningProcesses"] = mismatched
    (state, _) = device_states(nvml, own_process_ids=())
    assert (state.name, state.sm_clock_mhz, state.other_process_ids) == (
        "NVIDIA A100-SXM4-40GB",
        1410,
        None,
    )
    recorder = NvmlRecorder(nvml)
    assert query(recorder, "nvmlDeviceGetComputeRunningProcesses", 0) is None
    assert json.loads(recorder.to_json())[0]["error"] == str(error)
    monkeypatch.setitem(sys.modules, "pynvml", SimpleNamespace(nvmlInit=mismatched))
    assert open_nvml() is None


def test_text_that_is_not_utf_8_is_unknown() -> None:
    assert query(TwoGpuNvml(Name=(b"\xff\xfe", b"NVIDIA L4")), "nvmlDeviceGetName", 0) is None


def test_links_of_the_gpus_that_are_left() -> None:
    links = interconnect(TwoGpuNvml(lost=(0,)))
    assert [(device.index, device.uuid, device.active_nvlinks) for device in links.devices] == [
        (1, "GPU-bbbb", 12)
    ]
    assert links.pairs == ()


def test_a_record_is_of_one_moment(tmp_path: Path) -> None:
    """The same calls a second apart, as for states and then for links, are recorded once and
    replayed.
    """
    clocks = iter((210, 420))
    warming = TwoGpuNvml(PowerUsage=(None, None))
    vars(warming)["nvmlDeviceGetClockInfo"] = lambda handle, kind: next(clocks)

    def answers(nvml: Any) -> list[Any]:
        gpu = nvml.nvmlDeviceGetHandleByIndex(0)
        return [
            query(nvml, "nvmlDeviceGetClockInfo", gpu, 1),
            query(nvml, "nvmlDeviceGetPowerUsage", gpu),
        ]

    recorder = NvmlRecorder(warming)
    assert [answers(recorder), answers(recorder)] == [[210, None]] * 2
    path = tmp_path / "nvml.json"
    path.write_text(recorder.to_json())
    replay = ReplayedNvml(path)
    assert [answers(replay), answers(replay)] == [[210, None]] * 2
