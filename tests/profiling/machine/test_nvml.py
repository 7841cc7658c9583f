"""What cannot be asked is unknown: no bindings, no driver, no such question, no such GPU."""

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from dpscope.profiling.machine.interconnect import interconnect
from dpscope.profiling.machine.nvml import ask, driver_version, gpu_handles, open_nvml
from tests.helpers.nvml_records import TwoGpuNvml


class DriverlessError(Exception):
    pass


def failing(*arguments: Any) -> Any:
    raise DriverlessError("driver not loaded")


def test_without_bindings_or_driver_there_is_no_nvml(monkeypatch: pytest.MonkeyPatch) -> None:
    bindings = SimpleNamespace(nvmlInit=lambda: None, NVMLError=DriverlessError)
    monkeypatch.setitem(sys.modules, "pynvml", bindings)
    assert open_nvml() is bindings
    bindings.nvmlInit = failing
    assert open_nvml() is None
    monkeypatch.setitem(sys.modules, "pynvml", None)  # as if it were not installed
    assert open_nvml() is None


def test_what_has_no_answer_is_unknown() -> None:
    nvml = TwoGpuNvml(Name=(None, b"NVIDIA L4"))
    assert ask(nvml, "nvmlDeviceGetName", 0) is None
    assert ask(nvml, "nvmlDeviceGetName", 1) == "NVIDIA L4"
    assert ask(SimpleNamespace(NVMLError=DriverlessError), "nvmlDeviceGetNewest", 0) is None  # older bindings
    assert ask(None, "nvmlDeviceGetCount") is None
    assert gpu_handles(None) == []
    assert gpu_handles(SimpleNamespace(NVMLError=DriverlessError, nvmlDeviceGetCount=failing)) == []
    assert driver_version(None) is None


def test_links_of_the_gpus_that_are_left() -> None:
    class OneLost(TwoGpuNvml):
        def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802 (NVML's name)
            if index == 0:
                raise self.NVMLError("GPU is lost")
            return index

        def __getattr__(self, name: str) -> Any:
            if name.removeprefix("nvmlDeviceGet") in self.answers:
                return super().__getattr__(name)
            raise AttributeError(name)

    links = interconnect(OneLost())
    assert [(device.index, device.uuid, device.active_nvlinks) for device in links.devices] == [(1, "GPU-bbbb", 12)]
    assert links.pairs == ()
