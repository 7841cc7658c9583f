"""Ctrl-C ends every command that waits for jobs with status 130, and their processes with it."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest


def workers_that_name(folder: Path) -> list[int]:
    """Live processes under torchrun with `folder` in their arguments."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_bytes()
        except OSError:
            continue
        if str(folder).encode() in command and b"torch.distributed.run" in command:
            found.append(int(process.name))
    return found


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["calibrate", "--devices", "2"], "nothing is saved: interrupted"),
        (["equal", "--device", "cpu", "--steps", "50"], "nothing is compared: interrupted"),
        (["run", "--device", "cpu", "--strategy", "ddp", "--no-calibrate"], "the same command resumes the run"),
        (["train", "--device", "cpu", "--strategy", "ddp", "--data", "fake"], "interrupted"),
    ],
)
def test_ctrl_c_is_130_everywhere(tmp_path: Path, arguments: list[str], said: str) -> None:
    running = subprocess.Popen(
        [sys.executable, "-m", "dpscope.launch.cli", *arguments, "--out", str(tmp_path / "run")],
        env={**os.environ, "TMPDIR": str(tmp_path), "OMP_NUM_THREADS": "1"},  # a calibration's job works there
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    deadline = time.monotonic() + 60
    while not workers_that_name(tmp_path):
        assert running.poll() is None, running.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.05)
    running.send_signal(signal.SIGINT)
    printed, _ = running.communicate(timeout=60)
    assert running.returncode == 128 + signal.SIGINT, printed
    assert said in " ".join(printed.split())
    assert "Traceback" not in printed
    assert workers_that_name(tmp_path) == []
