"""A process that dies with the one that started it, without anything run between fork and exec."""

import os
import subprocess
import sys

import pytest

from dpscope.launch.jobs.parent_death import dying_with_process

ASKS = (
    "import ctypes; n = ctypes.c_int(); ctypes.CDLL(None).prctl(2, ctypes.byref(n)); print(n.value)"  # PR_GET_PDEATHSIG
)


@pytest.mark.process
@pytest.mark.skipif(sys.platform != "linux", reason="the parent's death is a signal on Linux alone")
def test_the_launcher_asks_and_becomes_the_command() -> None:
    asked = subprocess.run(
        dying_with_process(os.getpid(), [sys.executable, "-c", ASKS]), capture_output=True, text=True, check=True
    )
    assert asked.stdout == "9\n"
    plain = subprocess.run([sys.executable, "-c", ASKS], capture_output=True, text=True, check=True)
    assert plain.stdout == "0\n", "else the test could not fail"


@pytest.mark.process
def test_the_command_does_not_run_when_its_parent_is_gone() -> None:
    other = os.getpid() + 1  # somebody else than the parent
    ended = subprocess.run(
        dying_with_process(other, [sys.executable, "-c", "print(1)"]), capture_output=True, check=False
    )
    assert (ended.returncode, ended.stdout) == (1, b"")
