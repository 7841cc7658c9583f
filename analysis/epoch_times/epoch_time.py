"""An epoch time: what is known of it and of its batch, steps and samples.

Words: b is the batch per device, G = N b the global batch; T is an epoch time, t a step time.
"""

from typing import NamedTuple

from dpscope.profiling.records.finding import counted


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
        factor = min((1, self.devices), key=lambda factor: abs(ours - factor * theirs))
        last_is_partial = abs(ours - factor * theirs) < (self.global_batch or 1)
        return float(factor) if last_is_partial else ours / theirs


Setting = tuple[str | None, str | None, str, int, int, int | None]


def _steps(samples: int, batch: int) -> tuple[int, int]:
    """Steps of an epoch without and with its last, partial batch."""
    return samples // batch, -(-samples // batch)


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
