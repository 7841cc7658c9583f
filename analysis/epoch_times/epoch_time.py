"""An epoch time, and a table of them: what is known of each, of its batch, steps and samples.

Words: b is the batch per device, G = N b the global batch; T is an epoch time, t a step time.
"""

from typing import NamedTuple

from dpscope.analysis.text.units import NA
from dpscope.profiling.records.finding import counted


class Bounded(NamedTuple):
    """`low <= value <= high`; `high` is infinite if a denominator may be zero."""

    value: float
    low: float
    high: float


UNSTATED = "not stated"  # the strategy of several devices in a table without that column


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
    batch_size: int | None  # None: not stated, but the same on each device of every row
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
        """The epoch time, +- the resolution of the clock or printout; None if the run ended out of
        memory.

        A rounded value errs by half a resolution, a truncated one by up to one to one side, and a
        difference of two truncated readings by up to one to either side. A table does not state
        which, so the widest is used.
        """
        if (seconds := self.epoch_seconds) is None:
            return None
        margin_s = self.resolution_s or 0.0
        return Bounded(seconds, max(0.0, seconds - margin_s), seconds + margin_s)

    @property
    def local_batch(self) -> int | None:
        """b, the samples per device in one step; None if unknown or not the same on all devices."""
        if self.batch_size is None or self.batch_size_is == "per_device" or self.devices == 1:
            return self.batch_size
        divides = self.batch_size_is == "global" and self.batch_size % self.devices == 0
        return self.batch_size // self.devices if divides else None

    @property
    def global_batch(self) -> int | None:
        """G, the samples of all devices in one step; None if the table does not state what its
        batch is.
        """
        if self.batch_size is None or self.batch_size_is == "global" or self.devices == 1:
            return self.batch_size
        return self.batch_size * self.devices if self.batch_size_is == "per_device" else None

    @property
    def steps(self) -> int | None:
        """Of an epoch: as stated, or else ceil(samples / G); None if unknown."""
        if self.steps_per_epoch is not None:
            return self.steps_per_epoch
        size = self.global_batch
        return (
            None
            if size is None or self.samples_per_epoch is None
            else -(-self.samples_per_epoch // size)
        )

    @property
    def epoch_samples(self) -> int | None:
        """The samples that all devices process in an epoch: of the stated steps, else as stated;
        None if unknown. In batches of one device where their size is not stated: ratios are equal.
        """
        step_samples = self.devices if self.batch_size is None else self.global_batch
        if self.steps_per_epoch is not None and step_samples is not None:
            return self.steps_per_epoch * step_samples
        return self.samples_per_epoch

    def samples_over(self, single: "EpochTime") -> float | None:
        """Samples of this epoch over those of the single device's: 1 for the same data, N for equal
        steps at the same batch per device; None if unknown. A last, partial batch is no
        difference."""
        ours, theirs = self.epoch_samples, single.epoch_samples
        if ours is None or theirs is None:
            return None
        ratio = ours / theirs
        is_whole = abs(ours - round(ratio) * theirs) < (self.global_batch or 1)
        return float(round(ratio)) if is_whole and round(ratio) in (1, self.devices) else ratio


Setting = tuple[str | None, str | None, str, int | None, int, int | None]


class EpochTable(NamedTuple):
    """The rows of a table, the columns that it lacks, and its unknown columns."""

    rows: tuple[EpochTime, ...]
    absent_columns: tuple[str, ...] = ()
    unknown_columns: tuple[str, ...] = ()
    of_steps: bool = False  # each epoch is one step
    # half of the last digit of its times: what a row without resolution_s may be off by
    rounding_s: float = 0.0

    def of_study(self, name: str | None) -> "EpochTable":
        """The table with only this study's rows."""
        return self._replace(rows=tuple(row for row in self.rows if row.study == name))


def place(study: str | None, run: str | None) -> str:
    """A study and its run, in messages."""
    name = study or "Table"
    return f"{name} ({run})" if run else name


def layout(devices: int, nodes: int | None) -> str:
    """Devices in tables and messages: 4; 4x1 for four nodes with one each; 6 on 4 nodes if these
    have unlike numbers.
    """
    if nodes is None:
        return str(devices)
    return (
        f"{nodes}x{devices // nodes}"
        if devices % nodes == 0
        else f"{devices} on {counted(nodes, 'node')}"
    )


def at(strategy: str, batch_size: int | None, devices: int, nodes: int | None = None) -> str:
    """A setting in messages, as the tables name its columns."""
    batch = "" if batch_size is None else f"batch {batch_size}, "
    return f"{strategy}, {batch}N {layout(devices, nodes)}"


def significant(value: float | None) -> str:
    """A value with four significant digits, NA if unknown."""
    return NA if value is None else f"{value:.4g}"
