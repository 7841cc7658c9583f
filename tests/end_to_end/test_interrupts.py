"""Ctrl-C ends every command that waits for jobs with status 130, and their processes with it."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from dpscope.profiling.records.run import CellResult
from dpscope.profiling.store.files import read_json
from tests.helpers.sweeps import torchruns_of, wait_until


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["calibrate", "--devices", "2"], "nothing is saved: interrupted"),
        (["equal", "--device", "cpu", "--steps", "50"], "nothing is compared: interrupted"),
        (["run", "--device", "cpu", "--strategy", "ddp", "--no-calibrate"], "the same command resumes the run"),
        (["train", "--device", "cpu", "--strategy", "ddp", "--data", "fake"], "interrupted"),
    ],
)
def test_ctrl_c_is_130_everywhere(tmp_path: Path, arguments: list[str], message: str) -> None:
    running = subprocess.Popen(
        [sys.executable, "-m", "dpscope.launch.cli", *arguments, "--out", str(tmp_path / "run")],
        env={**os.environ, "TMPDIR": str(tmp_path), "OMP_NUM_THREADS": "1"},  # a calibration's job works there
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    wait_until(lambda: running.poll() is not None or torchruns_of(tmp_path) != [])
    assert running.poll() is None, running.communicate()
    running.send_signal(signal.SIGINT)
    printed, _ = running.communicate(timeout=60)
    assert running.returncode == 128 + signal.SIGINT, printed
    assert message in " ".join(printed.split())
    assert "Traceback" not in printed
    assert torchruns_of(tmp_path) == []
    if arguments[0] == "run":
        (result,) = (tmp_path / "run").glob("cells/*/repeat0/result.json")
        recorded = read_json(result, CellResult)
        assert (recorded.status, "the same command resumes the run" in recorded.message) == ("interrupted", True)
