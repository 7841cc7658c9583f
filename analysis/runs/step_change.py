"""Why a traced step takes longer in one run than in another: by part of the ledger, and compute by
classes of kernels. The parts add up to the change of the step.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from dpscope.analysis.runs.class_change import ClassChange, PartChange, StepKernels, class_changes
from dpscope.analysis.runs.run_data import RunData
from dpscope.analysis.text.units import as_ranges, show_share
from dpscope.analysis.traces.ranks.job import Job
from dpscope.analysis.traces.ranks.ledger import Ledger, ledger_of, other_part
from dpscope.analysis.traces.ranks.process_pool import over_cores
from dpscope.analysis.traces.ranks.trace_files import read_attributed
from dpscope.analysis.traces.reading.chunks import DEFAULT_LIMITS
from dpscope.analysis.traces.reading.event_table import IntColumn
from dpscope.analysis.traces.reading.table import Table, joined
from dpscope.analysis.traces.steps.kernel_work import kernel_work
from dpscope.profiling.records.finding import counted
from dpscope.profiling.store.errors import DpscopeError

COMPUTE = "compute"
_LARGE = 0.1  # of the compute time: what is not known of it is stated


@dataclass(frozen=True)
class StepChange:
    """One cell's mean traced step in both runs, over the ranks that both have; microseconds.

    `parts` add up to the step, `classes` to its compute; without any, `no_classes` is why.
    """

    cell: str
    before_us: float
    after_us: float
    parts: tuple[PartChange, ...]
    classes: tuple[ClassChange, ...] = ()
    ranks: tuple[int, ...] = ()
    some_ranks: bool = False  # a run traced further ranks
    # of the later run, and of the earlier one: the rank that waits least for others
    critical_rank: int | None = None
    critical_rank_before: int | None = None
    no_classes: str = ""
    notes: tuple[str, ...] = ()

    @property
    def change_us(self) -> float:
        return self.after_us - self.before_us


def step_changes(before: RunData, after: RunData) -> list[StepChange]:
    """Of every cell that both runs traced, in the earlier run's order."""
    changes = []
    for name, job in before.cells.items():
        later = after.cells.get(name)
        if later is None:
            continue
        sides = _Side.of(before, job), _Side.of(after, later)
        ranks = [set(side.windows["rank"].tolist()) for side in sides]
        if set.intersection(*ranks):
            changes.append(_step_change(*sides))
    return changes


@dataclass(frozen=True)
class _Side:
    """A cell of one run, and the whole windows that averages are of."""

    run: RunData
    job: Job
    windows: Table

    @classmethod
    def of(cls, run: RunData, job: Job) -> "_Side":
        every = job.critical_windows
        return cls(run, job, every.take(every.known("step_us")) if len(every) else every)

    def of_ranks(self, ranks: IntColumn) -> "_Side":
        return replace(self, windows=self.windows.take(np.isin(self.windows["rank"], ranks)))

    @property
    def ledger(self) -> Ledger:
        ledger = ledger_of(self.windows, self.job.tables.exposed_parts)
        assert ledger is not None  # there are windows
        return ledger

    def kernels(self) -> StepKernels:
        """Raises DpscopeError where the traces cannot be read or hold no events."""
        repeats: list[int] = []
        files: list[Path] = []
        for repeat, of_repeat in self.run.trace_files(self.job).items():
            repeats += [repeat] * len(of_repeat)
            files += of_repeat
        tables = over_cores(kernels_in, files, files)
        numbered = [
            table.assign(repeat=repeat) for repeat, table in zip(repeats, tables, strict=True)
        ]
        return StepKernels.of(self.windows, joined(numbered))


def kernels_in(file: Path) -> Table:
    """`kernel_work` of the ranks in one file."""
    return joined([kernel_work(rank) for rank in read_attributed(file, DEFAULT_LIMITS)])


def _step_change(before: _Side, after: _Side) -> StepChange:
    ranks = np.intersect1d(before.windows["rank"], after.windows["rank"])
    notes = list(_unlike(before, after))
    some_ranks = any(not np.isin(side.windows["rank"], ranks).all() for side in (before, after))
    before, after = before.of_ranks(ranks), after.of_ranks(ranks)
    earlier, later = before.ledger, after.ledger
    known = before.job.communication_known and after.job.communication_known
    parts = tuple(_parts(earlier, later, known))
    critical = _critical_rank(after.windows)
    classes: list[ClassChange] = []
    no_classes = ""
    try:
        _check_devices(before.job, after.job)
        classes = class_changes(before.kernels(), after.kernels(), critical)
    except DpscopeError as error:
        no_classes = str(error)
    notes += _doubts(classes, after.job)
    return StepChange(
        cell=before.job.name,
        before_us=earlier.traced_step_us,
        after_us=later.traced_step_us,
        parts=parts,
        classes=tuple(classes),
        ranks=tuple(ranks.tolist()),
        some_ranks=some_ranks,
        critical_rank=critical,
        critical_rank_before=_critical_rank(before.windows),
        no_classes=no_classes,
        notes=tuple(notes),
    )


def _check_devices(before: Job, after: Job) -> None:
    """Refuse operators of a CPU next to kernels of devices."""
    if before.on_device != after.on_device:
        raise DpscopeError("one job traced devices, the other the CPU alone: no kernel is alike")


def _critical_rank(windows: Table) -> int | None:
    """The rank that the others wait for: it waits least, and is idle least if none waits."""
    ranks = windows.group("rank")
    if len(ranks) < 2:
        return None
    wait_us, idle_us = (ranks.means(windows[name]) for name in ("exposed_wait_us", "idle_us"))
    first = np.lexsort((idle_us, np.nan_to_num(wait_us)))[0]
    return int(windows["rank"][ranks.first[first]])


def _parts(before: Ledger, after: Ledger, communication_known: bool) -> Iterator[PartChange]:
    """The parts of the ledger, as fine as both runs know them; they add up to the step."""
    if before.compute_us is None or after.compute_us is None:
        yield PartChange("all of the step", before.traced_step_us, after.traced_step_us)
        return
    yield PartChange(COMPUTE, before.compute_us, after.compute_us)
    exposed_us = before.exposed_us
    later_exposed_us = after.exposed_us
    if exposed_us is None or later_exposed_us is None or not communication_known:
        yield PartChange(
            "all but compute",
            before.traced_step_us - before.compute_us,
            after.traced_step_us - after.compute_us,
        )
        return
    if before.is_split and after.is_split:
        waits = before.wait_by_rank_us, after.wait_by_rank_us
        transfers = before.transfer_by_kind_us, after.transfer_by_kind_us
        others = before.other_by_kind_us, after.other_by_kind_us
        yield from _by("waiting for rank {}".format, *waits)
        yield from _by("transfer of {}".format, *transfers)
        yield from _by(other_part, *others)
    else:
        yield PartChange("exposed communication", exposed_us, later_exposed_us)
    yield from _idle(before, after)


def _by(
    named: Callable[[Any], str], before: Mapping[Any, float], after: Mapping[Any, float]
) -> Iterator[PartChange]:
    for key in dict.fromkeys([*before, *after]):
        yield PartChange(named(key), before.get(key, 0.0), after.get(key, 0.0))


def _idle(before: Ledger, after: Ledger) -> Iterator[PartChange]:
    """Idle time, by what is known of it in both runs."""
    before_us = before.idle_us or 0.0
    after_us = after.idle_us or 0.0
    for part, column in _OF_IDLE.items():
        earlier_us = getattr(before, column)
        later_us = getattr(after, column)
        if earlier_us is None or later_us is None:
            continue
        yield PartChange(part, earlier_us, later_us)
        before_us -= earlier_us
        after_us -= later_us
    yield PartChange("idle", before_us, after_us)


_OF_IDLE = {
    "idle, nothing launched": "unlaunched_us",
    "idle, copies from or to the host": "host_copy_us",
}


def _unlike(before: _Side, after: _Side) -> Iterator[str]:
    """What differs between the jobs, so that other things than kernels may have changed."""
    first, second = before.job, after.job
    if first.devices != second.devices:
        yield f"{counted(first.devices, 'device')} before, {second.devices} after"
    earlier = set(before.windows["rank"].tolist())
    later = set(after.windows["rank"].tolist())
    if earlier != later:
        common = as_ranges(sorted(earlier & later))
        yield f"only the ranks that both runs traced are compared: {common}"


def _doubts(classes: Sequence[ClassChange], job: Job) -> Iterator[str]:
    """What makes classes uncertain."""
    unknown_us = sum(kernels.after_us for kernels in classes if not kernels.sizes_known)
    every_us = sum(kernels.after_us for kernels in classes)
    if unknown_us > _LARGE * every_us:
        how = (
            "record_shapes=True"
            if job.foreign_format is None
            else f"an {job.foreign_format} has none"
        )
        yield (
            f"the input sizes of kernels with {show_share(unknown_us / every_us)} of the compute time are not recorded "
            f"({how}): those of one name and operator count as one class"
        )
