"""NVML's answers without a GPU: given by hand, or recorded and replayed."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any


class TwoGpuNvml:
    """NVML's answers as a two-GPU node gives them; `answers` holds one value per device and
    question; `lost` GPUs give none.
    """

    NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = 1, 2, 0

    class NVMLError(Exception):
        pass

    def __init__(self, lost: tuple[int, ...] = (), **answers: tuple[Any, Any]) -> None:
        self.lost = lost
        self.answers = {
            "UUID": ("GPU-aaaa", "GPU-bbbb"),
            "Name": ("NVIDIA A100-SXM4-40GB", "NVIDIA A100-SXM4-40GB"),
            "ClockInfo": (1410, 1410),
            "MaxClockInfo": (1410, 1410),
            "Temperature": (41, 83),
            "PowerUsage": (61_250, 398_000),
            "CurrentClocksThrottleReasons": (0x1, 0x0),  # idle is no throttling
            "CurrPcieLinkGeneration": (4, 4),
            "CurrPcieLinkWidth": (16, 16),
            "ComputeRunningProcesses": ([], []),
            "NvLinks": (12, 12),
            **answers,
        }

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802 (NVML's names)
        return 2

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802
        if index in self.lost:
            raise self.NVMLError("GPU is lost")
        return index

    def nvmlSystemGetDriverVersion(self) -> bytes:  # noqa: N802
        return b"550.54.15"

    def nvmlDeviceGetNvLinkState(self, handle: int, link: int) -> int:  # noqa: N802
        if link >= 12:
            raise self.NVMLError("invalid argument")
        return int(link < self.answers["NvLinks"][handle])

    def __getattr__(self, name: str) -> Any:
        question = name.removeprefix("nvmlDeviceGet")
        if question not in self.answers:  # as bindings that lack a function
            raise AttributeError(name)
        answers = self.answers[question]

        def answer(handle: int, *arguments: int) -> Any:
            if answers[handle] is None:
                raise self.NVMLError("not supported")
            return answers[handle]

        return answer


class ReplayedNvmlError(Exception):
    """Raised by a call that failed when it was recorded."""


class ReplayedNvml:
    """Has NVML's functions and returns the first recorded answer of each call; a call that was not
    recorded raises KeyError.
    """

    NVMLError = ReplayedNvmlError

    def __init__(self, path: Path) -> None:
        # records of older versions hold later answers, too
        calls = reversed(json.loads(path.read_text()))
        self._answers = {json.dumps([call["call"], *call["arguments"]]): call for call in calls}

    def __getattr__(self, name: str) -> Any:
        def answer(*arguments: Any) -> Any:
            recorded = self._answers[json.dumps([name, *arguments])]
            if "error" in recorded:
                raise ReplayedNvmlError(recorded["error"])
            return _replayed(recorded["answer"])

        return answer


def _replayed(answer: Any) -> Any:
    if isinstance(answer, list):
        return [_replayed(one) for one in answer]
    if isinstance(answer, dict):
        return answer["handle"] if "handle" in answer else SimpleNamespace(**answer)
    return answer
