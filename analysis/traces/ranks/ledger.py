"""Where a traced step goes, in parts that add up: compute, exposed wait, exposed transfer, other
exposed communication, idle.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dpscope.analysis.stats.samples import Interval
from dpscope.analysis.traces.ranks.whole_steps import STEP_KEYS
from dpscope.analysis.traces.reading.event_table import BoolColumn
from dpscope.analysis.traces.reading.table import Table
from dpscope.profiling.records.short_repr import short_repr

STEP_PARTS = {
    "compute": "compute",
    "exposed_wait": "wait",
    "exposed_transfer": "transfer",
    "exposed_other": "other",
    "idle": "idle",
}
"""Of a traced step, in the order in which tables show them, each with its heading; their sum is the
step.
"""
EXPOSED_PARTS = tuple(STEP_PARTS)[1:-1]

WAITING, TRANSFER, IDLE = "waiting for late ranks", "exposed transfer", "idle time of the devices"
UNSPLIT = "exposed communication"


def other_part(kind: str) -> str:
    """What a kind of `other_by_kind_us` is called as a part that can be removed."""
    return "broadcasts of buffers" if kind == "broadcast" else f"exposed {kind}"


@dataclass(frozen=True)
class Ledger:
    """Means over ranks and whole traced windows, microseconds per step; None is unknown.

    A process with several devices counts with its critical one, `critical_device`;
    `devices_exposed_us` is the mean over all.

    traced_step_us = compute_us + exposed_wait_us + exposed_transfer_us + exposed_other_us +
    idle_us. If wait and transfer are None and `exposed_other_us` is not, the exposed communication
    could not be split, and all of it is `exposed_other_us`. untraced step = traced_step_us +
    tracer_us; compute_us = compute of one device at the same batch + slowdown_us.
    """

    __repr__ = short_repr

    traced_step_us: float
    compute_us: float | None
    exposed_wait_us: float | None
    exposed_transfer_us: float | None
    exposed_other_us: float | None
    idle_us: float | None
    # adds up to exposed_transfer_us
    transfer_by_kind_us: Mapping[str, float] = field(default_factory=dict)
    # adds up to exposed_other_us
    other_by_kind_us: Mapping[str, float] = field(default_factory=dict)
    # by late rank, adds up to exposed_wait_us
    wait_by_rank_us: Mapping[int, float] = field(default_factory=dict)
    communication_us: float | None = None  # exposed or hidden behind compute
    unlaunched_us: float | None = None  # of idle: nothing was launched for the device
    host_copy_us: float | None = None  # of idle: copies that are no communication
    windows: int = 0  # (rank, device, step) rows behind the means
    steps: int = 0  # of all repeats, behind the means
    left_out_steps: int = 0  # of all repeats: whole, but far longer than the others
    critical_device: int | None = None
    devices_exposed_us: float | None = None
    tracer_us: float | None = None
    slowdown_us: float | None = None
    contention_us: float | None = None  # of compute: what hidden communication costs
    # compute next to communication over the same compute alone
    contention_ratio: float | None = None
    contention_ratio_interval: Interval | None = None  # 95%
    # 95%, over repeats, by name without _us
    intervals: Mapping[str, Interval] = field(default_factory=dict)

    @property
    def exposed_us(self) -> float | None:
        """All exposed communication."""
        if self.exposed_other_us is None:
            return None
        return (
            (self.exposed_wait_us or 0.0)
            + (self.exposed_transfer_us or 0.0)
            + self.exposed_other_us
        )

    @property
    def hidden_us(self) -> float | None:
        """Communication behind compute."""
        exposed_us = self.exposed_us
        return (
            None
            if self.communication_us is None or exposed_us is None
            else self.communication_us - exposed_us
        )

    @property
    def is_split(self) -> bool:
        """Whether waiting could be separated from transfer."""
        return self.exposed_wait_us is not None

    @property
    def parts_us(self) -> dict[str, float]:
        """The known ones of STEP_PARTS."""
        return {name: us for name in STEP_PARTS if (us := getattr(self, f"{name}_us")) is not None}


def step_count(windows: Table) -> int:
    """Steps of all repeats behind means over these windows, by the rank with most: ranks may number
    theirs differently.
    """
    steps = windows.group("repeat", "step")
    return int(windows.group("rank").different(steps.code).max(initial=0))


def critical_rows(windows: Table) -> BoolColumn:
    """Which of `step_table`'s rows are of their process's critical device: the one that is least
    idle, by its mean.

    The devices of a process share their steps, so the busiest one bounds them: DataParallel's first
    device, for example, sends the parameters to all others. A process with one device keeps all
    rows.
    """
    every = np.ones(len(windows), dtype=bool)
    processes = windows.group("repeat", "rank")
    if (processes.different(windows["device"]) <= 1).all():
        return every
    code = processes.code
    places = windows.assign(process=code).group("process", "device", in_order=True)
    idle_us = places.means(windows["idle_us"])
    order = np.lexsort((idle_us, code[places.first]))  # unknown idle time last
    _, least = np.unique(code[places.first[order]], return_index=True)
    return np.isin(places.code, order[least])


_OTHERS = ("communication_us", "unlaunched_us", "host_copy_us")


def ledger_of(windows: Table, parts: Table) -> Ledger | None:
    """From `with_waits`' rows and `exposed_parts` of the same tables; None without a known step."""
    every = windows.with_known("step_us")
    if not len(every):
        return None
    critical = every.take(critical_rows(every))
    several, count = len(critical) < len(every), len(critical)
    exposed = parts.within(critical, STEP_KEYS)
    devices = critical.group("device", in_order=True)
    means: dict[str, Any] = {
        name: critical.mean(name) for name in (*(f"{part}_us" for part in STEP_PARTS), *_OTHERS)
    }
    return Ledger(
        traced_step_us=float(critical["step_us"].mean()),
        **means,
        transfer_by_kind_us=_by(exposed, "transfer", "kind", count),
        other_by_kind_us=_by(exposed, "other", "kind", count),
        wait_by_rank_us=_by(exposed, "wait", "late_rank", count),
        windows=count,
        steps=step_count(critical),
        critical_device=int(critical["device"][devices.first[devices.sizes.argmax()]])
        if several
        else None,
        devices_exposed_us=every.mean("exposed_us") if several else None,
    )


def _by(parts: Table, part: str, label: str, windows: int) -> dict[Any, float]:
    """Per step by the values of a column, "unknown" where it has none, largest first."""
    of_part = parts.having("part", part)
    labels = of_part.group(label, in_order=True)
    time_us = labels.sums(of_part["time_us"]) / windows
    order = np.argsort(-time_us, kind="stable")
    named = of_part.take(labels.first[order]).records((label,))
    names = ["unknown" if row[label] is None else row[label] for row in named]
    return dict(zip(names, time_us[order].tolist(), strict=True))
