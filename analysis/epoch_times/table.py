"""Tables of epoch times: CSV with a heading row, and the single-device row to compare each multi-device one with.

An empty cell is unknown; an empty `epoch_seconds` means that the run ended out of memory. A mistake in the file raises
DpscopeError with one line that names file, row (line in the file), column, value and fix.

Words: b is the batch per device, G = N b the global batch; T is an epoch time, t a step time.
"""

from collections import defaultdict
from collections.abc import Iterable
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from dpscope.analysis.text.csv_rows import CsvRow, read_rows
from dpscope.profiling.records.finding import counted
from dpscope.profiling.records.strategies import traits_of
from dpscope.profiling.records.typed_text import choose_from
from dpscope.profiling.store.errors import DpscopeError

REQUIRED_COLUMNS = ("strategy", "batch_size", "devices", "epoch_seconds")
_SECONDS_RANGE = (1e-9, 1e9)


class Bounded(NamedTuple):
    """`low <= value <= high`; `high` is infinite if a denominator may be zero."""

    value: float
    low: float
    high: float


class EpochTime(NamedTuple):
    """One row of a table of epoch times; None is unknown."""

    study: str | None
    run: str | None
    hardware: str | None
    model: str | None
    parameters: int | None
    dataset: str | None
    samples_per_epoch: int | None
    strategy: str
    batch_size: int
    batch_size_is: str | None  # global or per_device
    devices: int
    epoch_seconds: float | None  # None: out of memory
    resolution_s: float | None  # None: exact
    provenance: str | None
    steps_per_epoch: int | None
    nodes: int | None = None  # hosts of the devices

    @property
    def setting(self) -> "Setting":
        """What distinguishes the rows of a table, and its estimates."""
        return (self.study, self.run, self.strategy, self.batch_size, self.devices, self.nodes)

    @property
    def seconds(self) -> Bounded | None:
        """The epoch time, +- the resolution of the clock or printout; None if the run ended out of memory.

        A rounded value errs by half a resolution, a truncated one by up to one to one side, and a difference of two
        truncated readings by up to one to either side. A table does not state which, so the widest is used.
        """
        if (seconds := self.epoch_seconds) is None:
            return None
        margin_s = self.resolution_s or 0.0
        return Bounded(seconds, max(0.0, seconds - margin_s), seconds + margin_s)

    @property
    def local_batch(self) -> int | None:
        """b, the samples per device in one step; None if unknown or not the same on all devices."""
        if self.batch_size_is == "per_device" or self.devices == 1:
            return self.batch_size
        divides = self.batch_size_is == "global" and self.batch_size % self.devices == 0
        return self.batch_size // self.devices if divides else None

    @property
    def global_batch(self) -> int | None:
        """G, the samples of all devices in one step; None if the table does not state what its batch is."""
        if self.batch_size_is == "global" or self.devices == 1:
            return self.batch_size
        return self.batch_size * self.devices if self.batch_size_is == "per_device" else None

    @property
    def steps(self) -> int | None:
        """Of an epoch: as stated, or else ceil(samples / G); None if unknown."""
        if self.steps_per_epoch is not None:
            return self.steps_per_epoch
        size = self.global_batch
        return None if size is None or self.samples_per_epoch is None else -(-self.samples_per_epoch // size)

    @property
    def repeats_data(self) -> bool:
        """Whether every device goes through all samples: its steps, at its own batch, are those of all samples."""
        samples, steps = self.samples_per_epoch, self.steps_per_epoch
        if self.batch_size_is != "per_device" or self.devices == 1 or samples is None or steps is None:
            return False
        return steps in _steps(samples, self.batch_size) and steps not in _steps(
            samples, self.batch_size * self.devices
        )

    @property
    def epoch_samples(self) -> int | None:
        """The samples that all devices process in an epoch; None if unknown."""
        if self.repeats_data:
            return (self.samples_per_epoch or 0) * self.devices
        if self.samples_per_epoch is not None:
            return self.samples_per_epoch
        size, steps = self.global_batch, self.steps_per_epoch
        return None if size is None or steps is None else steps * size

    def samples_over(self, single: "EpochTime") -> float | None:
        """Samples of this epoch over those of the single device's: 1 for the same data, N for equal steps at the same batch per
        device; None if unknown."""
        ours, theirs = self.epoch_samples, single.epoch_samples
        if ours is None or theirs is None:
            return None
        for factor in (1, self.devices):
            if abs(ours - factor * theirs) < (self.global_batch or 1):  # the last batch of an epoch may be partial
                return float(factor)
        return ours / theirs


Setting = tuple[str | None, str | None, str, int, int, int | None]


def _steps(samples: int, batch: int) -> tuple[int, int]:
    """Steps of an epoch without and with its last, partial batch."""
    return samples // batch, -(-samples // batch)


OPTIONAL_COLUMNS = tuple(name for name in EpochTime._fields if name not in REQUIRED_COLUMNS)


class EpochTable(NamedTuple):
    """The rows of a table, the OPTIONAL_COLUMNS that it lacks, and its unknown columns."""

    rows: tuple[EpochTime, ...]
    absent_columns: tuple[str, ...] = ()
    unknown_columns: tuple[str, ...] = ()

    def of_study(self, name: str | None) -> "EpochTable":
        """The table with only this study's rows."""
        return self._replace(rows=tuple(row for row in self.rows if row.study == name))


def read_epoch_times(path: Path) -> EpochTable:
    """Read and check a table of epoch times; raises DpscopeError for a file that is not such a table."""
    headings, lines = read_rows(path, REQUIRED_COLUMNS)
    rows: list[EpochTime] = []
    first_lines: dict[tuple[object, ...], int] = {}
    for line in lines:
        row = _epoch_time(line)
        if (first := first_lines.setdefault(row.setting, line.line)) != line.line:
            raise DpscopeError(
                f"{path}, row {line.line}: strategy {row.strategy}, batch_size {row.batch_size}, devices {row.devices} "
                f"again, as in row {first}; distinguish placements in column nodes, and repetitions, models and machines in "
                "column run or study"
            )
        rows.append(row)
    absent = tuple(name for name in OPTIONAL_COLUMNS if name not in headings)
    return EpochTable(tuple(rows), absent, tuple(name for name in headings if name not in EpochTime._fields))


def _epoch_time(row: CsvRow) -> EpochTime:
    strategy = row.required_text("strategy").lower()
    devices = row.required_whole("devices")
    if traits_of(strategy).baseline and devices != 1:
        raise row.error("devices", "for strategy single; single is one device, name the strategy of the others")
    meaning = row.text("batch_size_is")
    if meaning not in (None, "global", "per_device"):
        advice = choose_from(meaning, ("global", "per_device"))
        raise row.error(
            "batch_size_is", f"is neither global nor per_device; {advice}, or leave it empty if it is unknown"
        )
    nodes = row.whole("nodes")
    if nodes is not None and nodes > devices:
        raise row.error("nodes", f"for {counted(devices, 'device')}; a node has at least one of them")
    shortest, longest = _SECONDS_RANGE
    return EpochTime(
        study=row.text("study"),
        run=row.text("run"),
        hardware=row.text("hardware"),
        model=row.text("model"),
        parameters=row.whole("parameters"),
        dataset=row.text("dataset"),
        samples_per_epoch=row.whole("samples_per_epoch"),
        strategy=strategy,
        batch_size=row.required_whole("batch_size"),
        batch_size_is=meaning,
        devices=devices,
        epoch_seconds=row.decimal(
            "epoch_seconds", lambda s: shortest <= s <= longest, "seconds between 1e-9 and 1e9 (empty: out of memory)"
        ),
        resolution_s=row.decimal("resolution_s", lambda s: 0 <= s <= longest, "seconds from 0 on (empty: exact)"),
        provenance=row.text("provenance"),
        steps_per_epoch=row.whole("steps_per_epoch"),
        nodes=nodes,
    )


_COMMON = ("run", "model", "dataset", "samples_per_epoch")
"""Columns in which a row and its single-device row agree, except for the rules of `Baselines.find`."""


class Baselines:
    """The one-device rows of a table, by what a multi-device row that is compared with them has in common with them."""

    def __init__(self, rows: Iterable[EpochTime]) -> None:
        self._alike: dict[tuple[object, ...], list[EpochTime]] = defaultdict(list)
        self._measured: dict[str | None, set[str | None]] = defaultdict(set)  # by study: runs with one-device rows
        several: dict[str | None, set[str | None]] = defaultdict(set)
        for one in rows:
            if one.devices == 1:
                self._alike[self._key(one, one.run, one.batch_size)].append(one)
            (self._measured if one.devices == 1 else several)[one.study].add(one.run)
        self._single_only = {study: runs - several[study] for study, runs in self._measured.items()}

    @staticmethod
    def _key(row: EpochTime, run: str | None, batch_size: int) -> tuple[object, ...]:
        return (row.study, run, row.model, row.dataset, batch_size)

    def find(self, row: EpochTime, batch_size: int, *, sweep_first: bool) -> tuple[EpochTime | None, str]:
        """The timed one-device row at `batch_size` to compare `row` with, and its origin; else None and the reason.

        It has the same study, model and data set, a known ratio of samples per epoch, and strategy `single`, or else the row's
        strategy on one device. Rows of the same hardware come first ("1x L4" also serves "4x L4").

        A run uses its own rows, or those of a run with the suffix `_sweep`, which has only one-device rows. A ratio prefers the
        run's own row, so that both times come from one run. A subtraction prefers the sweep: it compares times across batch
        sizes, which the sweep measured together. A run without one-device rows uses the study's only run that has nothing else.
        """
        measured, single_only = self._measured.get(row.study, set()), self._single_only.get(row.study, set())
        runs, sweep = [row.run], f"{row.run}_sweep"
        if row.run and sweep in single_only:
            runs = [sweep, row.run] if sweep_first else [row.run, sweep]
        if measured.isdisjoint(runs) and len(single_only) == 1:
            runs = list(single_only)
        for run in runs:
            alike = self._alike.get(self._key(row, run, batch_size), [])
            same = [one for one in alike if one.samples_per_epoch == row.samples_per_epoch]
            alike = same or [one for one in alike if row.samples_over(one) is not None]
            found = [one for one in alike if traits_of(one.strategy).baseline]
            found = found or [one for one in alike if one.strategy == row.strategy]
            found = [one for one in found if one.hardware == row.hardware] or found
            if len(found) > 1:
                return None, f"{len(found)} different single-device times at batch {batch_size}: name one run for each"
            for one in found:
                where = "" if one.run == row.run else f" of run {one.run}"
                if one.epoch_seconds is None:
                    return None, f"the single device ran out of memory at batch {batch_size}{where}"
                return one, f"T_1 at batch {batch_size}{where}"
        return None, self._missing(row, batch_size)

    def _missing(self, row: EpochTime, batch_size: int) -> str:
        """Why no single-device time at `batch_size` is compared with the row: there is none, or what it differs in."""
        for other in chain.from_iterable(self._alike.values()):
            if (other.study, other.batch_size) == (row.study, batch_size):
                differing = [name for name in _COMMON if getattr(other, name) != getattr(row, name)]
                if differing:
                    names = ", ".join(f"{name} {getattr(other, name) or 'empty'}" for name in differing)
                    return f"no single-device time at batch {batch_size} is comparable: the table's has {names}"
        return f"no single-device time at {counted(batch_size, 'sample')} per device"


def place(study: str | None, run: str | None) -> str:
    """A study and its run, in messages."""
    name = study or "table"
    return f"{name} ({run})" if run else name


def layout(devices: int, nodes: int | None) -> str:
    """Devices in tables and messages: 4; 4x1 for four nodes with one each; 6 on 4 nodes if these have unlike numbers."""
    if nodes is None:
        return str(devices)
    return f"{nodes}x{devices // nodes}" if devices % nodes == 0 else f"{devices} on {counted(nodes, 'node')}"


def at(batch_size: int | None, devices: int | None, nodes: int | None = None) -> str:
    """A setting in messages: (batch_size, devices)."""
    placed = "any" if devices is None else layout(devices, nodes)
    return f"({'any' if batch_size is None else batch_size}, {placed})"
