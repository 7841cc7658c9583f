"""What the processes of `process_pool` are given to do in tests: it is sent by its name, so it is in a module."""

import os
import signal
import time
from pathlib import Path

from dpscope.analysis.traces.ranks.process_pool import reduce_file
from dpscope.analysis.traces.reading.limits import DEFAULT_LIMITS, ReadLimits
from dpscope.profiling.store.errors import DpscopeError


def die_at_rank_c(path: Path, limits: ReadLimits = DEFAULT_LIMITS) -> list[str]:
    """The letter a file is named by; of c, a killed process."""
    if path.name.startswith("c"):
        os.kill(os.getpid(), signal.SIGKILL)
    return [path.name[0]]


def reduce_or_die_at_rank_c(path: Path, limits: ReadLimits) -> bytes | DpscopeError:
    """A file's rows; of c, a killed process."""
    die_at_rank_c(path)
    return reduce_file(path, limits)


def mark_and_wait(mark: Path) -> None:
    """Show that it began, and take long."""
    mark.touch()
    time.sleep(60)
