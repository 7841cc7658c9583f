"""Progress of `dpscope analyze`: on a terminal only, and on standard error."""

import os
import pty
import subprocess
import sys

import pytest

from tests.helpers.paths import EXAMPLE_RUN

pytestmark = pytest.mark.process

TRACES = EXAMPLE_RUN / "cells" / "ddp-d2-b8" / "repeat0" / "traces"
COMMAND = (sys.executable, "-m", "dpscope.launch.cli", "analyze", str(TRACES), "--format", "csv")


def test_a_terminal_shows_how_many_traces_are_read_and_a_file_nothing() -> None:
    terminal, theirs = pty.openpty()
    ended = subprocess.run(COMMAND, stdout=subprocess.PIPE, stderr=theirs, timeout=120, check=False)
    os.close(theirs)
    output = os.read(terminal, 1 << 16).decode()
    os.close(terminal)
    assert "Reading traces: 1 of 2 read" in output
    assert "Reading traces: 2 of 2 read" in output
    quiet = subprocess.run(COMMAND, capture_output=True, timeout=120, check=False)
    assert (ended.returncode, quiet.returncode, quiet.stderr) == (0, 0, b"")
    assert ended.stdout == quiet.stdout
    assert quiet.stdout.startswith(b"rank,device,step")
