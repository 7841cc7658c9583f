"""Speedups of a run's cells over device counts, with intervals, and the laws that its points
allow.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from dpscope.analysis.cells.row import ratio as over
from dpscope.analysis.runs.variant_savings import series_variant
from dpscope.analysis.stats.samples import Estimate, Spread, ratio_estimate
from dpscope.analysis.stats.scaling_laws import (
    Scaling,
    ScalingFit,
    fit_scaling,
    karp_flatt,
    speedup_draws,
)
from dpscope.analysis.stats.turns import TurnSamples
from dpscope.analysis.traces.ranks.job import Job
from dpscope.profiling.records.finding import counted
from dpscope.profiling.records.run import Cell
from dpscope.profiling.records.strategies import CellStrategy


def devices_text(devices: int, nodes: int) -> str:
    """Such as ``8 devices``, and ``8 devices over 2 nodes``."""
    return counted(devices, "device") + (f" over {nodes} nodes" if nodes > 1 else "")


@dataclass(frozen=True)
class ScalingPoint:
    """One cell against one device. Speedup: N t_1(b) / t_N(b), weak (Gustafson, 1988); t_1(G) /
    t_N(G/N), strong.
    """

    cell: str
    devices: int
    speedup: Estimate
    # Karp and Flatt's; None where it would be above 1, as no fraction is
    serial_fraction: float | None
    nodes: int = 1

    @property
    def efficiency(self) -> Estimate:
        """Speedup over the number of devices, its interval with it."""
        speedup = self.speedup
        low, high = over(speedup.low, self.devices), over(speedup.high, self.devices)
        return Estimate(over(speedup.value, self.devices), low, high, speedup.count)


@dataclass(frozen=True)
class ScalingSeries:
    """Cells of one strategy (and variant) at one batch: per device under weak scaling, global under
    strong.
    """

    strategy: CellStrategy
    variant: str
    scaling: Scaling
    batch_size: int
    points: tuple[ScalingPoint, ...]  # by devices, all of them above 1
    fit: ScalingFit | None

    @property
    def label(self) -> str:
        """Such as ``ddp weak, b = 32``."""
        name = f"{self.strategy} {self.variant}".strip()
        return (
            f"{name} {self.scaling}, {'b' if self.scaling == 'weak' else 'G'} = {self.batch_size}"
        )


@dataclass(frozen=True)
class ScalingChoice:
    """One batch number read both ways on N devices: weak trains it per device, strong in all.

    `ratio` is the weak cell's samples per second over the strong one's, which is also the ratio of
    their efficiencies, since both stand against the same single-device cell.
    """

    strategy: CellStrategy
    devices: int
    batch_size: int
    weak: str
    strong: str
    ratio: Estimate


def scaling_series(
    measured: Sequence[Job],
    single_device_baselines: Callable[[Cell], Mapping[int, Job]],
    spread: Spread,
) -> tuple[ScalingSeries, ...]:
    """Every series with a single-device cell to stand against.

    `single_device_baselines` gives a cell's single-device counterparts by batch size, `spread` is
    that of all cells' repeats. A series goes on to more nodes where more devices need them; the
    same devices over more nodes than the fewest on which they were measured (2 x 2 versus 1 x 4)
    form a separate one.
    """
    fewest: dict[object, int] = {}
    for data in measured:
        kind = msgspec.structs.replace(data.cell, nodes=1)
        fewest[kind] = min(data.nodes, fewest.get(kind, data.nodes))
    groups: dict[tuple[CellStrategy, str, Scaling, int], list[tuple[Job, Job]]] = {}
    for data in measured:
        cell = data.cell
        kinds: tuple[tuple[Scaling, int], ...] = (
            ("weak", cell.batch_size),
            ("strong", cell.global_batch_size),
        )
        for scaling, batch in kinds if cell.devices > 1 else ():
            if (single := single_device_baselines(cell).get(batch)) is not None:
                variant = series_variant(cell, single.cell)
                if data.nodes > fewest[msgspec.structs.replace(cell, nodes=1)]:
                    variant = f"{variant} over {data.nodes} nodes".strip()
                groups.setdefault((cell.strategy, variant, scaling, batch), []).append(
                    (data, single)
                )
    return tuple(
        _series(*key, group[0][1], [data for data, _ in group], spread)
        for key, group in groups.items()
    )


def _series(
    strategy: CellStrategy,
    variant: str,
    scaling: Scaling,
    batch_size: int,
    single: Job,
    cells: list[Job],
    spread: Spread,
) -> ScalingSeries:
    alone = single.step_samples()
    speedups, several, points = {}, {}, []
    for data in sorted(cells, key=lambda data: data.devices):
        devices, samples = data.devices, data.step_samples()
        speedup = ratio_estimate(alone, samples, spread).times(devices if scaling == "weak" else 1)
        assert speedup.value is not None  # a measured cell has samples
        points.append(
            ScalingPoint(
                cell=data.name,
                devices=devices,
                speedup=speedup,
                serial_fraction=fraction
                if (fraction := karp_flatt(speedup.value, devices)) <= 1
                else None,
                nodes=data.nodes,
            )
        )
        speedups[devices], several[devices] = speedup.value, samples
    draws = speedup_draws(alone, several, scaling, spread)
    return ScalingSeries(
        strategy, variant, scaling, batch_size, tuple(points), fit_scaling(speedups, scaling, draws)
    )


def scaling_choices(measured: Sequence[Job], spread: Spread) -> tuple[ScalingChoice, ...]:
    """Pairs of cells that train the same batch number per device (weak) and in all (strong) on the
    same devices.
    """
    planned = [(larger.cell, larger) for larger in measured]
    by_key = {
        (cell.strategy, (cell.variant, one.nodes), cell.devices, cell.batch_size): one
        for cell, one in planned
    }
    choices = []
    for (strategy, variant, devices, batch), weak in by_key.items():
        strong = by_key.get((strategy, variant, devices, batch // devices))
        if devices == 1 or batch % devices or strong is None:
            continue
        # samples/s: weak N b / t_N(b), strong b / t_N(b / N)
        split = strong.step_samples()
        slower = TurnSamples([np.asarray(repeat * devices) for repeat in split], split.places)
        ratio = ratio_estimate(slower, weak.step_samples(), spread)
        choices.append(
            ScalingChoice(strategy, devices, batch, weak.cell.name, strong.cell.name, ratio)
        )
    return tuple(choices)
