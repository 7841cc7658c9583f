"""Efficiency over devices: predicted, with bands, and measured."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from dpscope.analysis.figures.style import new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_LOGARITHMIC = 8  # times the least count, from which small counts would stand on each other


class Efficiencies(NamedTuple):
    """`predicted`: devices, efficiency and the ends of its band; `measured`: without a band."""

    predicted: Sequence[tuple[int, float, float, float]] = ()
    measured: Sequence[tuple[int, float]] = ()


def efficiency_figure(
    predicted: Sequence[tuple[int, float, float, float]], measured: Sequence[tuple[int, float]]
) -> "Figure | None":
    """A line of predictions with their band, and the measured points; None without predictions."""
    if not predicted:
        return None
    drawn, (axes,) = new_figure(rows=9)
    devices, values, low, high = zip(*predicted, strict=True)
    percents = [[100 * value for value in column] for column in (values, low, high)]
    axes.fill_between(devices, percents[1], percents[2], alpha=0.25, linewidth=0)
    axes.plot(devices, percents[0], marker=".", label="predicted, 90% band")
    if measured:
        devices, values = zip(*measured, strict=True)
        shares = [100 * value for value in values]
        axes.plot(devices, shares, "o", color="black", fillstyle="none", label="measured")
    ticks = sorted({point[0] for points in (predicted, measured) for point in points})
    if ticks[-1] >= _LOGARITHMIC * ticks[0]:
        axes.set_xscale("log", base=2)
        axes.minorticks_off()
    axes.set(xlabel="devices", ylabel="efficiency t_1 / t_N [%]", ylim=(0, None))
    axes.set_xticks(ticks, labels=[str(tick) for tick in ticks])
    axes.margins(x=0.05)
    return drawn
