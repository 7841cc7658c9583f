"""Efficiency over devices: predicted, with bands, and measured."""

from collections.abc import Sequence
from textwrap import fill
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from dpscope.analysis.figures.style import literal, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_IDEAL = 100  # percent
_FEWEST_POINTS = 3
_TITLE_WIDTH = 70  # characters
_LOGARITHMIC = 8  # times the least count, from which small counts would stand on each other


class Efficiencies(NamedTuple):
    """`predicted` from the cell of name `base`: devices, efficiency and the ends of its band;
    `measured`: without a band. `limits`: what makes predictions too good, by devices.
    """

    base: str = ""
    predicted: Sequence[tuple[int, float, float, float]] = ()
    measured: Sequence[tuple[int, float]] = ()
    limits: Sequence[str] = ()


def efficiency_figure(of: Efficiencies) -> "Figure | None":
    """Predictions with their bands as whiskers, and the measured points; None without predictions, or
    with so few points that they show no course.
    """
    points = len(of.predicted) + len(of.measured)
    if not of.predicted or points < _FEWEST_POINTS:
        return None
    drawn, (axes,) = new_figure(rows=9)
    predicted = np.array(of.predicted, dtype=float)
    devices = predicted[:, 0]
    percent = 100 * predicted[:, 1:]
    middle, low, high = percent.T
    axes.errorbar(
        devices,
        middle,
        yerr=[middle - low, high - middle],
        marker=".",
        capsize=3,
        label=f"predicted from {literal(of.base)}",
    )
    if of.measured:
        measured = np.array(of.measured, dtype=float)
        counts, reached = measured.T
        axes.plot(counts, 100 * reached, "o", color="black", fillstyle="none", label="measured")
    ticks = sorted({count for count, *_ in (*of.predicted, *of.measured)})
    if ticks[-1] >= _LOGARITHMIC * ticks[0]:
        axes.set_xscale("log", base=2)
        axes.minorticks_off()
    axes.set(xlabel="devices", ylabel="efficiency $t_1 / t_N$ [%]", ylim=(0, None))
    axes.set_xticks(ticks, labels=[str(tick) for tick in ticks])
    if axes.get_ylim()[1] > _IDEAL:
        axes.axhline(_IDEAL, color="black", linestyle=":", label="ideal: 100%")
    axes.margins(x=0.05)
    if of.limits:
        limits = literal(" ".join(of.limits))
        title = fill(limits, _TITLE_WIDTH)
        axes.set_title(title)
    return drawn
