"""Many trace files at once, over the machine's cores."""

import multiprocessing
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, closing, suppress
from functools import partial
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import TypeAlias, TypeVar

from dpscope.analysis.traces.ranks import pool_worker
from dpscope.analysis.traces.ranks.rank_tables import RankTables
from dpscope.analysis.traces.ranks.readers import TRACES, Reader
from dpscope.analysis.traces.reading.chunks import ReadLimits
from dpscope.profiling.machine.cores import usable_cores
from dpscope.profiling.store.errors import DpscopeError

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")

# of text: what one process reads in the half second in which others start and import
START_BYTES = 64 << 20
_GZIP_RATIO = 12  # of traces, roughly

FileProgress = Callable[[int, int], None]
"""Called with the files done and the files in all, after each file, in the calling process."""

FileOutcome: TypeAlias = RankTables | DpscopeError
"""The tables of a file's ranks, or why it could not be read."""


def read_files(
    files: Sequence[Path],
    limits: ReadLimits,
    progress: FileProgress | None = None,
    reader: Reader = TRACES,
    jobs: int | None = None,
) -> list[FileOutcome]:
    """The tables of each file's ranks, in the files' order; for a file that could not be read its
    error.

    They are read one after another, or by as many processes as this one may use cores (or `jobs`),
    if that saves more than their start costs.
    """
    outcomes: dict[int, FileOutcome] = {}
    read = partial(read_file, limits=limits, reader=reader)
    with closing(_answers(read, files, files, jobs)) as answers:
        for place, outcome in answers:
            outcomes[place] = outcome
            if progress is not None:
                progress(len(outcomes), len(files))
    return [outcomes[place] for place in range(len(files))]


def over_cores(
    work: Callable[[_Item], _Result], items: Sequence[_Item], files: Sequence[Path]
) -> list[_Result]:
    """`work` of every item, in order, by as many processes as save time: an item's share of work is
    that of its file.

    Raises what `work` raises, and DpscopeError for a process that ends without an answer.
    """
    results: dict[int, _Result] = {}
    with closing(_answers(work, items, files)) as answers:
        for place, answer in answers:
            if isinstance(answer, DpscopeError):
                raise answer
            results[place] = answer
    return [results[place] for place in range(len(items))]


def _worthwhile_processes(files: Sequence[Path], jobs: int | None = None) -> int:
    """How many processes save more time than they cost; 0 for none."""
    sizes = [_text_bytes(file) for file in files]
    count = min(jobs or usable_cores(), len(files))
    # whose processes have the cores already
    inside_a_pool = multiprocessing.current_process().daemon
    if count < 2 or inside_a_pool:
        return 0
    longest = max(*sizes, sum(sizes) / count)  # what the busiest of them reads
    return count if sum(sizes) - longest >= START_BYTES else 0


def read_file(file: Path, limits: ReadLimits, reader: Reader = TRACES) -> FileOutcome:
    """The tables of a trace file's ranks, or the error, which in a worker is pickled: the work of
    processes.
    """
    try:
        return reader.read(file, limits)
    except DpscopeError as error:
        return DpscopeError(str(error))


def _unanswered(file: Path, how: str) -> DpscopeError:
    return DpscopeError(
        f"the process that was to read {file} ended without an answer ({how}); "
        "if memory ran out, read fewer files at once"
    )


def _text_bytes(file: Path) -> int:
    try:
        return file.stat().st_size * (_GZIP_RATIO if file.suffix == ".gz" else 1)
    except OSError:
        return 0


def _answers(
    work: Callable[[_Item], _Result],
    items: Sequence[_Item],
    files: Sequence[Path],
    jobs: int | None = None,
) -> Generator[tuple[int, _Result | DpscopeError]]:
    """Each item's place and result as they come, by as many processes as save time, which end with
    the generator.

    A process that dies costs its item alone, whose result is an error: another takes its place.
    Raises what `work` raises.
    """
    count = _worthwhile_processes(files, jobs)
    if not count:
        yield from ((place, work(item)) for place, item in enumerate(items))
        return
    places = iter(range(len(items)))
    busy: dict[Connection, tuple[_Worker, int]] = {}
    with ExitStack() as ending:

        def occupy(worker: _Worker | None = None) -> None:
            if (place := next(places, None)) is not None:
                worker = worker or ending.enter_context(closing(_Worker()))
                worker.send((work, items[place]))
                busy[worker.connection] = worker, place

        for _ in range(count):
            occupy()
        while busy:
            for ready in [
                connection for connection in wait(list(busy)) if isinstance(connection, Connection)
            ]:
                worker, place = busy.pop(ready)
                try:
                    succeeded, answer = ready.recv()
                except (EOFError, OSError):
                    occupy()
                    yield place, _unanswered(files[place], worker.how_it_ended())
                    continue
                if not succeeded:
                    raise answer
                occupy(worker)
                yield place, answer


class _Worker:
    """A process that runs `pool_worker`, and the connection to it.

    It has a separate process group: Ctrl-C on a terminal reaches only the caller, which then ends
    it.
    """

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        self.connection = Connection(ours.detach())
        with theirs:
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-P",
                    pool_worker.__file__,
                    str(theirs.fileno()),
                    str(os.getpid()),
                ],
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                process_group=0,
            )
        self.send(sys.path)

    def close(self) -> None:
        """End it."""
        self.connection.close()
        self._process.kill()
        self._process.wait()

    def send(self, message: object) -> None:
        """Send it; that a process has ended is reported only when its answer is awaited."""
        with suppress(BrokenPipeError, ConnectionResetError):
            self.connection.send(message)

    def how_it_ended(self) -> str:
        """Its exit status or signal, once its end of the connection is closed."""
        status = self._process.wait()
        return f"signal {-status}" if status < 0 else f"exit status {status}"
