"""Checks for tests of what runs checks: one passes, one fails, one crashes, one hangs, one leaves a process behind."""

import subprocess
import sys
import time

from dpscope.launch.acceptance.verdict import CheckVerdict, at_most, equals
from dpscope.launch.acceptance.workplace import Workplace
from dpscope.profiling.store.errors import DpscopeError


def passes(place: Workplace) -> list[CheckVerdict]:
    """Two verdicts, from its arguments."""
    return [equals("passes.gpus", place.gpus, 3), at_most("passes.share", 0.0031, 0.02, "%")]


def fails(place: Workplace) -> list[CheckVerdict]:
    """A value above its limit."""
    return [at_most("fails.share", 0.5, 0.02, "%", "far too much")]


def mistaken(place: Workplace) -> list[CheckVerdict]:
    """Cannot be judged."""
    raise DpscopeError("nothing was measured; measure it")


def crashes(place: Workplace) -> list[CheckVerdict]:
    """As a driver does that takes the process with it."""
    sys.stderr.write("CUDA driver gone\n")
    sys.stderr.flush()
    import os

    os._exit(7)


def hangs(place: Workplace) -> list[CheckVerdict]:
    """Longer than anybody waits, and so does its child."""
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    time.sleep(600)
    return []


def leaves(place: Workplace) -> list[CheckVerdict]:
    """A process that nobody ends, in a session of its own."""
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    (place.folder / "child.txt").write_text(str(child.pid))
    return [equals("leaves.started", True, True)]
