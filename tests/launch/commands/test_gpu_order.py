"""The command itself counts and describes GPUs in the order of the jobs that it starts."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import pytest
from typer.testing import CliRunner

from dpscope.launch.contents import app
from dpscope.launch.jobs import devices
from dpscope.launch.jobs.worker_process import TorchrunPlace, work
from dpscope.profiling.store.errors import DpscopeError

ORDER = "CUDA_DEVICE_ORDER"
COMMANDS = ("run", "train", "equal", "calibrate")


def order_when_gpus_are_counted(patch: pytest.MonkeyPatch, *command: str) -> str | None:
    """The variable's value in the command's process at the moment when GPUs are looked for, before
    torch starts CUDA.
    """
    seen = []

    def asked() -> None:
        seen.append(os.environ.get(ORDER))
        raise DpscopeError("asked")

    patch.setattr(devices, "present_gpus", asked)
    ended = CliRunner().invoke(app, command)
    assert isinstance(ended.exception, DpscopeError), ended.output
    (value,) = seen
    return value


@pytest.mark.parametrize("name", COMMANDS)
def test_commands_number_gpus_as_nvml_and_their_jobs_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    monkeypatch.setenv(ORDER, "")
    monkeypatch.delenv(ORDER)  # restored by either
    out = str(tmp_path / "out")
    assert order_when_gpus_are_counted(monkeypatch, name, "--out", out) == "PCI_BUS_ID"
    monkeypatch.setenv(ORDER, "FASTEST_FIRST")  # as the user wants it
    assert order_when_gpus_are_counted(monkeypatch, name, "--out", out) == "FASTEST_FIRST"


def test_a_worker_started_by_hand_uses_the_same_order(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def read(arguments: Sequence[str], place: TorchrunPlace) -> NoReturn:
        seen.append(os.environ.get(ORDER))
        raise SystemExit(0)

    for variable in ("RANK", "LOCAL_RANK", "GROUP_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"):
        monkeypatch.setenv(variable, "1" if "WORLD" in variable else "0")
    monkeypatch.setenv(ORDER, "")
    monkeypatch.delenv(ORDER)
    with pytest.raises(SystemExit):
        work(read)
    assert seen == ["PCI_BUS_ID"]


def test_an_attached_script_keeps_its_order(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(ORDER, "")
    monkeypatch.delenv(ORDER)
    script = tmp_path / "train.py"
    script.touch()
    assert (
        order_when_gpus_are_counted(
            monkeypatch, "attach", "--out", str(tmp_path / "out"), "--", str(script)
        )
        is None
    )
    assert ORDER not in os.environ
