"""NVML's answers without a GPU: recorded call by call as JSON and replayed, or given by hand."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any


class NvmlError(Exception):
    """What a recorded call that failed raises again."""


class ReplayedNvml:
    """Has NVML's functions and answers each call as it was recorded; a call that was not recorded fails the test."""

    NVMLError = NvmlError

    def __init__(self, path: Path) -> None:
        self._answers = {_key(call["call"], call["arguments"]): call for call in json.loads(path.read_text())}

    def __getattr__(self, name: str) -> Any:
        def answer(*arguments: Any) -> Any:
            recorded = self._answers[_key(name, arguments)]
            if "error" in recorded:
                raise NvmlError(recorded["error"])
            return _replayed(recorded["answer"])

        return answer


def _replayed(answer: Any) -> Any:
    if isinstance(answer, dict):
        return answer["handle"] if "handle" in answer else SimpleNamespace(**answer)
    return answer


def _key(name: str, arguments: Any) -> str:
    return json.dumps([name, *arguments])


class NvmlRecorder:
    """Wraps NVML (`pynvml`, initialised) and notes every call with its answer, device handles by their number.

    with open("node.json", "w") as file: file.write(recorder.to_json()) after the calls that are to be replayed.
    """

    def __init__(self, nvml: Any) -> None:
        self.NVMLError = nvml.NVMLError
        self._nvml = nvml
        self._handles: dict[str, Any] = {}
        self._calls: list[dict[str, Any]] = []

    def __getattr__(self, name: str) -> Any:
        def answer(*arguments: Any) -> Any:
            noted: dict[str, Any] = {"call": name, "arguments": list(arguments)}
            real = [self._handles.get(one, one) if isinstance(one, str) else one for one in arguments]
            try:
                value = getattr(self._nvml, name)(*real)
            except self.NVMLError as error:
                self._note({**noted, "error": str(error)})
                raise
            if name == "nvmlDeviceGetHandleByIndex":
                self._handles[f"gpu{arguments[0]}"] = value
                self._note({**noted, "answer": {"handle": f"gpu{arguments[0]}"}})
                return f"gpu{arguments[0]}"
            self._note({**noted, "answer": _plain(value)})
            return value

        return answer

    def _note(self, call: dict[str, Any]) -> None:
        if call not in self._calls:
            self._calls.append(call)

    def to_json(self) -> str:
        """The calls, one a line."""
        return "[\n" + ",\n".join(json.dumps(call) for call in self._calls) + "\n]\n"


def _plain(value: Any) -> Any:
    if hasattr(value, "busId"):
        return {"busId": _plain(value.busId)}
    return value.decode() if isinstance(value, bytes) else value


class TwoGpuNvml:
    """NVML's answers as a two-GPU node gives them; `answers` holds one value per device and question."""

    NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = 1, 2, 0

    class NVMLError(Exception):
        pass

    def __init__(self, **answers: tuple[Any, Any]) -> None:
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
