"""What is fitted to a table's rows, and what the same would have said of rows that it is not shown."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from dpscope.analysis.what_if.bands import FARTHEST
from dpscope.analysis.what_if.forecasts import LINKS, MODEL, POWER, Hindcast, level, simple_forecasts
from dpscope.analysis.what_if.growth import Growth, growth_of
from dpscope.analysis.what_if.single_device import SingleDevice
from dpscope.analysis.what_if.step_model import Design, StepModel, fit_step_model
from dpscope.analysis.what_if.step_table import MeasuredStep


@dataclass(frozen=True)
class FittedRows:
    """Rows of one series with what is fitted to them: the model, and by link how overheads grow."""

    rows: tuple[MeasuredStep, ...]
    single: SingleDevice
    model: StepModel
    growths: Mapping[str, Growth]

    @classmethod
    def of(cls, rows: Sequence[MeasuredStep], single: SingleDevice) -> "FittedRows":
        """Fit rows at batches that one device was measured at."""
        sync = np.array([math.nan if row.sync_us is None else row.sync_us for row in rows])
        model = fit_step_model(design_of(rows, single), np.array([row.step_us for row in rows]), sync)
        by_link = {link: [row for row in rows if level(row.placement) == link] for link in LINKS[1:]}
        return cls(tuple(rows), single, model, {link: growth_of(mine, single.at) for link, mine in by_link.items()})

    @cached_property
    def alike(self) -> Mapping[tuple[int, str], list[MeasuredStep]]:
        """The rows by batch and kind of link."""
        found: dict[tuple[int, str], list[MeasuredStep]] = {}
        for row in self.rows:
            found.setdefault((row.batch_size, level(row.placement)), []).append(row)
        return found

    @cached_property
    def _simple(self) -> dict[tuple[int, str, int], dict[str, float]]:
        """What was forecast without the model, by batch, link and devices: many rows ask for the same."""
        return {}

    def forecasts(self, asked: Sequence[MeasuredStep]) -> list[tuple[dict[str, float], float]]:
        """Of each configuration every forecast, microseconds, and the share that the model says is exposed."""
        design = design_of(asked, self.single)
        modelled, exposed = self.model.step_us(design), self.model.exposed_us(design)
        return [
            ({MODEL: float(step), **self._without_model(row, float(alone))}, float(late / step))
            for row, alone, step, late in zip(asked, design.alone_us, modelled, exposed, strict=True)
        ]

    def _without_model(self, asked: MeasuredStep, alone_us: float) -> dict[str, float]:
        batch, link, ranks = asked.batch_size, level(asked.placement), asked.placement.ranks
        if ranks == 1:
            return {}
        if (batch, link, ranks) not in self._simple:
            found = simple_forecasts(self.alike.get((batch, link), []), alone_us, ranks)
            further = self.growths[link].step_us(alone_us, batch, ranks)
            self._simple[batch, link, ranks] = found if further is None else {**found, POWER: further}
        return self._simple[batch, link, ranks]


def design_of(rows: Sequence[MeasuredStep], single: SingleDevice) -> Design:
    """What the model needs of rows at batches that one device was measured at."""
    alone = [single.at(row.batch_size) for row in rows]
    assert None not in alone
    return Design.of(rows, np.array(alone, dtype=float))


def leave_out(rows: Sequence[MeasuredStep], single: SingleDevice) -> list[Hindcast]:
    """Every device count forecast from the others; counts of several nodes stay out where no other crosses nodes."""
    found = []
    for count in sorted({row.placement.ranks for row in rows if row.placement.ranks > 1}):
        kept = [row for row in rows if row.placement.ranks != count]
        held = [row for row in rows if row.placement.ranks == count]
        found += _hindcasts(kept, held, single, None)
    return found


def from_fewer(rows: Sequence[MeasuredStep], single: SingleDevice) -> list[Hindcast]:
    """The rows of more devices forecast from those of fewer, from each measured count on."""
    found = []
    for most in sorted({row.placement.ranks for row in rows if row.placement.ranks > 1})[:-1]:
        kept = [row for row in rows if row.placement.ranks <= most]
        held = [row for row in rows if most < row.placement.ranks <= FARTHEST * most]
        found += _hindcasts(kept, held, single, most)
    return found


def _hindcasts(
    kept: Sequence[MeasuredStep], held: Sequence[MeasuredStep], single: SingleDevice, largest: int | None
) -> list[Hindcast]:
    links = {level(row.placement) for row in kept}
    asked = [row for row in held if level(row.placement) in links]
    if not asked or not any(row.placement.ranks > 1 for row in kept):
        return []
    forecasts = FittedRows.of(kept, single).forecasts(asked)
    return [Hindcast(row, *one, largest) for row, one in zip(asked, forecasts, strict=True)]
