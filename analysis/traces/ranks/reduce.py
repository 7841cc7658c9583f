"""`dpscope reduce`: traces read where they lie, or a share of them, and written as one partial; or
partials joined.
"""

import os
import re
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from dpscope.analysis.traces.ranks.origin import Origin, origin_of
from dpscope.analysis.traces.ranks.partial import read_partial, write_partial
from dpscope.analysis.traces.ranks.process_pool import FileProgress, read_files
from dpscope.analysis.traces.ranks.rank_tables import RankTables, Unread, join_ranks
from dpscope.analysis.traces.ranks.readers import PARTIALS, Paths, find_files
from dpscope.analysis.traces.ranks.trace_analysis import none_read
from dpscope.analysis.traces.reading.chunks import DEFAULT_LIMITS, ReadLimits
from dpscope.profiling.records.finding import counted
from dpscope.profiling.records.short_repr import short_repr
from dpscope.profiling.store.errors import DpscopeError
from dpscope.profiling.store.ownership import check_overwritable

(PARTIAL_SUFFIX,) = PARTIALS.suffixes
_Item = TypeVar("_Item")


_TASKS = (
    ("SLURM_PROCID", "SLURM_NTASKS"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
)  # set for each task by srun, Open MPI's mpirun, and MPICH's and Intel's mpirun


@dataclass(frozen=True)
class Share:
    """Share `index` (from 0) of `of`."""

    index: int
    of: int

    @property
    def name(self) -> str:
        """The share in file names, such as 3of16."""
        return f"{self.index + 1}of{self.of}"

    def among(self, items: Sequence[_Item]) -> list[_Item]:
        """Every `of`-th item; the shares of one sequence hold each of its items once."""
        return list(items[self.index :: self.of])


def read_share(text: str, environment: Mapping[str, str] = os.environ) -> Share:
    """Parse `--share`: K/N, or auto, by the launcher's environment variables. Raises DpscopeError
    where neither is there.
    """
    if text == "auto":
        for index_name, count_name in _TASKS:
            index = environment.get(index_name, "")
            count = environment.get(count_name, "")
            if index.isdecimal() and count.isdecimal() and int(index) < int(count):
                return Share(int(index), int(count))
        named = ", ".join(" and ".join(pair) for pair in _TASKS)
        raise DpscopeError(
            f"--share auto: none of {named} is set; start dpscope with srun or mpirun, or use --share K/N"
        )
    # int() refuses thousands of digits with its own error
    match = re.fullmatch(r"(\d{1,9})/(\d{1,9})", text)
    number, of = map(int, match.groups()) if match else (0, 0)
    if not 1 <= number <= of:
        raise DpscopeError(f"--share {text}: use auto, or K/N with K from 1 to N, such as 3/16")
    return Share(number - 1, of)


@dataclass(frozen=True)
class Reduced:
    """What a call wrote: how many traces it read and kept from before; those unreadable or cut
    short.
    """

    __repr__ = short_repr

    path: Path
    ranks: int
    read: int
    kept: int
    unread: tuple[Unread, ...]
    cut_short: tuple[str, ...]  # files that end too early, or cannot be read to their end


def reduce_traces(
    paths: Paths,
    out: str | Path,
    share: Share | None = None,
    limits: ReadLimits = DEFAULT_LIMITS,
    jobs: int | None = None,
    progress: FileProgress | None = None,
) -> Reduced:
    """Write one partial of traces (or of this task's `share` of them), or of partials; `out` is a
    folder or *.dpscope.

    Traces already in `out` that are unchanged and were read by the same code are not read again.
    Files are read in `jobs` local processes. Raises
    DpscopeError if there is nothing to reduce, none of it can be read, or the partial cannot be
    written. A share of which nothing can be read is written all the same: joined with the others it
    tells of the traces that are missing.
    """
    host = socket.gethostname()
    # A share's file is named by its number, since another host may continue it.
    name = host if share is None else f"share-{share.name}"
    place = _place(Path(out), name)
    check_overwritable(place)
    chosen = find_files(paths)
    if chosen.reader is PARTIALS:
        return _join_into(place, chosen.files)
    files = chosen.files if share is None else share.among(chosen.files)
    origins = {file: origin_of(file) for file in files}
    earlier = _earlier(place, origins)
    read_before = {rank.origin for rank in earlier.ranks}
    missing = [file for file, origin in origins.items() if origin not in read_before]
    outcomes = read_files(missing, limits, progress, chosen.reader, jobs)
    parts = [earlier]
    unread: list[Unread] = []
    for file, outcome in zip(missing, outcomes, strict=True):
        if isinstance(outcome, DpscopeError):
            unread.append(Unread(str(file), str(outcome)))
            continue
        origin = origins[file] or Origin(str(file.absolute()))
        parts.append(outcome.stored_of(origin, host if share is None else None))
    whole = join_ranks(parts, unread)
    if unread and share is None and not whole.ranks:
        raise none_read(min(unread).message)
    read = len(missing) - len(unread)
    return _written(whole.take(whole.order()), place, read, kept=len(earlier.ranks))


def _place(out: Path, name: str) -> Path:
    """The partial's file: `out`, or in that folder one with this name. Raises DpscopeError for a
    file's name that is no partial's.
    """
    if out.suffix == PARTIAL_SUFFIX:
        return out
    if out.suffix and not out.is_dir():
        raise DpscopeError(f"-o {out}: name a folder, or a file that ends in {PARTIAL_SUFFIX}")
    return out / f"{name}{PARTIAL_SUFFIX}"


def _join_into(place: Path, partials: Sequence[Path]) -> Reduced:
    """Partials, and the one that is in the place, as one."""
    files = list(partials)
    if place.exists():
        files.append(place)
    once = {path.resolve(): path for path in files}
    whole = join_ranks([read_partial(path) for path in once.values()])
    ranks = whole.each_once()
    return _written(whole.take(ranks), place, read=0, kept=len(ranks))


def _written(ranks: RankTables, place: Path, read: int, kept: int) -> Reduced:
    write_partial(ranks, place)
    cut_short = tuple(rank.origin.file for rank in ranks.ranks if rank.summary.cut_short)
    return Reduced(
        path=place,
        ranks=len(ranks.ranks),
        read=read,
        kept=kept,
        unread=ranks.unread,
        cut_short=cut_short,
    )


def _earlier(place: Path, files: Mapping[Path, Origin | None]) -> RankTables:
    """The ranks of an earlier call whose traces are unchanged.

    Raises DpscopeError if the existing partial cannot be read or has ranks of other traces: it is
    not overwritten then.
    """
    if not place.exists():
        return join_ranks([])
    try:
        earlier = read_partial(place)
    except DpscopeError as error:
        raise DpscopeError(
            f"{error}; it is the output file: remove it first, or choose another with -o NAME{PARTIAL_SUFFIX}"
        ) from error
    files_now = {str(file.absolute()) for file in files}
    gone = sorted({rank.origin.file for rank in earlier.ranks} - files_now)
    if gone:
        raise DpscopeError(
            f"{place} already holds {counted(len(gone), 'trace')} not among these, such as {gone[0]}; "
            f"choose another file with -o NAME{PARTIAL_SUFFIX}, or remove it"
        )
    origins = set(files.values())
    unchanged = [index for index in earlier.each_once() if earlier.ranks[index].origin in origins]
    # What could not be read then is read again.
    return replace(earlier.take(unchanged), unread=())
