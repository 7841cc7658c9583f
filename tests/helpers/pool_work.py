"""What the processes of `process_pool` are given to do in tests: it is sent by its name, so it is
in a module.
"""

import os
import signal
import time
from pathlib import Path

from dpscope.analysis.traces.ranks.process_pool import FileOutcome, read_file
from dpscope.analysis.traces.ranks.readers import Reader
from dpscope.analysis.traces.reading.chunks import DEFAULT_LIMITS, ReadLimits


def die_at_rank_c(path: Path, limits: ReadLimits = DEFAULT_LIMITS) -> list[str]:
    """The letter a file is named by; of c, a killed process."""
    if path.name.startswith("c"):
        os.kill(os.getpid(), signal.SIGKILL)
    return [path.name[0]]


def read_or_die_at_rank_c(path: Path, limits: ReadLimits, reader: Reader) -> FileOutcome:
    """A file's tables; of c, a killed process."""
    die_at_rank_c(path)
    return read_file(path, limits, reader)


def mark_and_wait(mark: Path) -> None:
    """Show that it began, and take long."""
    mark.touch()
    time.sleep(60)
