"""NVML's answers, recorded call by call as JSON and replayed without a GPU."""

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
