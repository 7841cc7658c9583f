"""Speedups of a run's cells over device counts, with intervals, and the laws that its points allow."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from dpscope.analysis.cells.row import ratio as over
from dpscope.analysis.runs.cell_data import CellData
from dpscope.analysis.runs.variant_savings import series_variant
from dpscope.analysis.stats.samples import Estimate, Samples, Spread, pooled_median, ratio_estimate
from dpscope.analysis.stats.scaling_laws import (
    Scaling,
    ScalingFit,
    fit_scaling,
    karp_flatt,
    scaled_speedup,
    speedup_draws,
    strong_speedup,
)
from dpscope.profiling.records.finding import counted
from dpscope.profiling.records.run import Cell
from dpscope.profiling.records.strategies import CellStrategy, traits_of


def devices_text(devices: int, nodes: int) -> str:
    """Such as ``8 devices``, and ``8 devices over 2 nodes``."""
    return counted(devices, "device") + (f" over {nodes} nodes" if nodes > 1 else "")


@dataclass(frozen=True)
class ScalingPoint:
    """One cell against one device."""

    cell: str
    devices: int
    speedup: Estimate
    serial_fraction: float | None  # Karp and Flatt's; None where it would be above 1, as no fraction is
    nodes: int = 1

    @property
    def efficiency(self) -> Estimate:
        """Speedup over the number of devices, its interval with it."""
        speedup = self.speedup
        low, high = over(speedup.low, self.devices), over(speedup.high, self.devices)
        return Estimate(over(speedup.value, self.devices), low, high, speedup.count)


@dataclass(frozen=True)
class ScalingSeries:
    """Cells of one strategy (and variant) at one batch: per device under weak scaling, global under strong."""

    strategy: CellStrategy
    variant: str
    scaling: Scaling
    batch_size: int
    points: tuple[ScalingPoint, ...]  # by devices, all of them above 1
    fit: ScalingFit | None

    @property
    def label(self) -> str:
        """Such as ``DDP weak, b = 32``."""
        name = f"{traits_of(self.strategy).label} {self.variant}".strip()
        return f"{name} {self.scaling}, {'b' if self.scaling == 'weak' else 'G'} = {self.batch_size}"


@dataclass(frozen=True)
class ScalingChoice:
    """One batch number read both ways on N devices: weak trains it per device, strong in all.

    `ratio` is the weak cell's samples per second over the strong one's, which is also the ratio of their efficiencies, since
    both stand against the same single-device cell.
    """

    strategy: CellStrategy
    devices: int
    batch_size: int
    weak: str
    strong: str
    ratio: Estimate


def scaling_series(
    measured: Sequence[CellData], single_device_baselines: Callable[[Cell], Mapping[int, CellData]], spread: Spread
) -> tuple[ScalingSeries, ...]:
    """Every series with a single-device cell to stand against.

    `single_device_baselines` gives a cell's single-device counterparts by batch size, `spread` is that of all cells' repeats.
    """
    groups: dict[tuple[CellStrategy, str, Scaling, int], list[CellData]] = {}
    fewest = _fewest_nodes(measured)
    for data in measured:
        cell = data.planned
        if cell.devices == 1:
            continue
        kinds: tuple[tuple[Scaling, int], ...] = (("weak", cell.batch_size), ("strong", cell.global_batch_size))
        for scaling, batch in kinds:
            if (single := single_device_baselines(cell).get(batch)) is not None:
                spread_wider = data.nodes > fewest[cell.strategy, cell.variant, cell.devices, cell.batch_size]
                variant = series_variant(cell, single.planned)
                variant = f"{variant} over {data.nodes} nodes".strip() if spread_wider else variant
                groups.setdefault((cell.strategy, variant, scaling, batch), []).append(data)
    return tuple(
        _series(*key, single_device_baselines(group[0].planned)[key[3]], group, spread) for key, group in groups.items()
    )


def _fewest_nodes(measured: Sequence[CellData]) -> dict[tuple[CellStrategy, str, int, int], int]:
    """On how few nodes each device count was measured: a series goes on to more nodes where more devices need them.

    The same devices over more nodes (2 x 2 versus 1 x 4) form a separate series.
    """
    fewest: dict[tuple[CellStrategy, str, int, int], int] = {}
    for data in measured:
        key = (data.planned.strategy, data.planned.variant, data.cell.devices, data.planned.batch_size)
        fewest[key] = min(data.nodes, fewest.get(key, data.nodes))
    return fewest


def _series(
    strategy: CellStrategy,
    variant: str,
    scaling: Scaling,
    batch_size: int,
    single: CellData,
    cells: list[CellData],
    spread: Spread,
) -> ScalingSeries:
    ordered = sorted(cells, key=lambda data: data.cell.devices)
    alone = _known(single.step_samples())
    several = {data.cell.devices: _known(data.step_samples()) for data in ordered}
    draws = speedup_draws(alone, several, scaling, spread)
    speedups = {devices: _speedup(alone, repeats, devices, scaling) for devices, repeats in several.items()}
    points = []
    for data in ordered:
        devices = data.cell.devices
        against = ratio_estimate(alone, several[devices], spread)
        times = devices if scaling == "weak" else 1
        low, high = (end * times if end is not None else None for end in (against.low, against.high))
        points.append(
            ScalingPoint(
                cell=data.cell.name,
                devices=devices,
                speedup=Estimate(speedups[devices], low, high, sum(map(len, several[devices]))),
                serial_fraction=fraction if (fraction := karp_flatt(speedups[devices], devices)) <= 1 else None,
                nodes=data.nodes,
            )
        )
    return ScalingSeries(strategy, variant, scaling, batch_size, tuple(points), fit_scaling(speedups, scaling, draws))


def _known(repeats: Iterable[Samples]) -> list[Samples]:
    return [repeat for repeat in repeats if len(repeat)]


def _speedup(alone: Sequence[Samples], repeats: Sequence[Samples], devices: int, scaling: Scaling) -> float:
    t_1_us, t_n_us = pooled_median(alone), pooled_median(repeats)
    assert t_1_us is not None  # a measured cell has samples
    assert t_n_us is not None
    return scaled_speedup(t_1_us, t_n_us, devices) if scaling == "weak" else strong_speedup(t_1_us, t_n_us)


def scaling_choices(measured: Sequence[CellData], spread: Spread) -> tuple[ScalingChoice, ...]:
    """Pairs of cells that train the same batch number per device (weak) and in all (strong) on the same devices."""
    planned = [(one.planned, one) for one in measured]
    by_key = {(cell.strategy, (cell.variant, one.nodes), cell.devices, cell.batch_size): one for cell, one in planned}
    choices = []
    for (strategy, variant, devices, batch), weak in by_key.items():
        strong = by_key.get((strategy, variant, devices, batch // devices))
        if devices == 1 or batch % devices or strong is None:
            continue
        # samples/s: weak N b / t_N(b), strong b / t_N(b / N)
        slower = [np.asarray(repeat * devices) for repeat in strong.step_samples()]
        ratio = ratio_estimate(slower, weak.step_samples(), spread)
        choices.append(ScalingChoice(strategy, devices, batch, weak.cell.name, strong.cell.name, ratio))
    return tuple(choices)
