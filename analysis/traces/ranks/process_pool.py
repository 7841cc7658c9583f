"""Many trace files at once, over the machine's cores or anybody's `concurrent.futures.Executor`."""

import ctypes
import gc
import multiprocessing
import os
import signal
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, CancelledError, Executor, Future, ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from pathlib import Path
from pickle import PickleError
from typing import TypeVar

from dpscope.analysis.traces.ranks.rank_tables import RankTables, read_rank_tables
from dpscope.profiling.store.errors import DpscopeError

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")

SIZEABLE_BYTES = 24 << 20  # of text; below, a file is read before a process has started
_GZIP_RATIO = 12  # of traces, roughly
_PR_SET_PDEATHSIG = 1

Progress = Callable[[int, int], None]
"""Called with the files done and the files in all, after each file, in the calling process."""

Outcome = list[RankTables] | DpscopeError


def read_files(
    files: Sequence[Path], max_bytes: int, executor: Executor | None = None, progress: Progress | None = None
) -> list[Outcome]:
    """The ranks' tables of each file, in the files' order; for a file that could not be read its error.

    Without an executor files are read one after another, or by as many processes as this one may use cores, if two or more
    of the files are worth a process. The processes end with this call, however it ends.
    """
    if executor is not None:
        return _submitted(files, max_bytes, executor, progress)
    workers = _workers(files)
    if workers < 2:
        return _one_by_one(files, max_bytes, progress)
    with _own_processes(workers) as own:
        return _submitted(files, max_bytes, own, progress)


def over_cores(work: Callable[[_Item], _Result], items: Sequence[_Item], files: Sequence[Path]) -> list[_Result]:
    """`work` of every item, in order, by as many processes as are worth it: an item's share of work is that of its file.

    Raises what `work` raises, and DpscopeError for a process that ends without an answer.
    """
    workers = _workers(files)
    if workers < 2:
        return [work(item) for item in items]
    with _own_processes(workers) as own, warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # forking beside threads: the children run `work` alone
        futures = [own.submit(work, item) for item in items]
        try:
            return [future.result() for future in futures]
        except BrokenExecutor as error:
            raise DpscopeError(
                f"a process that worked on the traces ended without an answer ({error}); if memory ran out, take fewer files"
            ) from error


def _workers(files: Sequence[Path]) -> int:
    """How many processes are worth it; below 2 there is no need for any."""
    sizeable = sum(_text_bytes(file) >= SIZEABLE_BYTES for file in files)
    return 0 if multiprocessing.current_process().daemon else min(_usable_cores(), sizeable)


def _one_by_one(files: Sequence[Path], max_bytes: int, progress: Progress | None) -> list[Outcome]:
    outcomes: list[Outcome] = []
    for done, file in enumerate(files, 1):
        outcomes.append(_outcome(file, max_bytes))
        if progress is not None:
            progress(done, len(files))
    return outcomes


def _outcome(file: Path, max_bytes: int) -> Outcome:
    """In a worker an error is an answer like another: it is pickled as one."""
    try:
        return read_rank_tables(file, max_bytes)
    except DpscopeError as error:
        return DpscopeError(str(error))


def _submitted(files: Sequence[Path], max_bytes: int, executor: Executor, progress: Progress | None) -> list[Outcome]:
    with warnings.catch_warnings():  # forking beside threads: the children run this module's code alone
        warnings.simplefilter("ignore", DeprecationWarning)
        futures = [executor.submit(_outcome, file, max_bytes) for file in files]
    for done, _ in enumerate(as_completed(futures), 1):
        if progress is not None:
            progress(done, len(files))
    return [_result(file, future) for file, future in zip(files, futures, strict=True)]


def _result(file: Path, future: "Future[Outcome]") -> Outcome:
    try:
        return future.result()
    except (BrokenExecutor, CancelledError, PickleError, OSError) as error:
        return DpscopeError(
            f"the process that was to read {file} ended without an answer ({type(error).__name__}: {error}); "
            "if memory ran out, read fewer files at once"
        )


def _text_bytes(file: Path) -> int:
    try:
        size = file.stat().st_size
    except OSError:
        return 0
    return size * _GZIP_RATIO if file.suffix == ".gz" else size


def _usable_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def _own_processes(count: int) -> Iterator[ProcessPoolExecutor]:
    """A pool whose processes are gone afterwards, also after an interrupt."""
    method = "fork" if sys.platform == "linux" else None  # else each process would import everything again
    context = multiprocessing.get_context(method)
    pool = ProcessPoolExecutor(count, mp_context=context, initializer=_begin_worker)
    try:
        yield pool
    except BaseException:
        processes = list((pool._processes or {}).values())  # Python 3.14 has kill_workers() for this
        pool.shutdown(wait=False, cancel_futures=True)
        for process in processes:
            process.kill()
        for process in processes:
            process.join()
        raise
    pool.shutdown()


def _begin_worker() -> None:
    """A worker leaves an interrupt to its parent, has none of its handlers, and ends when it does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    gc.freeze()  # a collection would write to, and so copy, every page of objects shared with the parent
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
