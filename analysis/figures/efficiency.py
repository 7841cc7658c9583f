"""Efficiency over devices: predicted, with bands, and measured."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from dpscope.profiling.records.finding import counted
from dpscope.profiling.store.errors import DpscopeError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MOST_LINES = 8  # that a reader can distinguish
_LOGARITHMIC = 8  # times the least count, from which small counts would stand on each other


def efficiency_figure(
    lines: Mapping[str, Sequence[tuple[int, float, float, float]]],
    measured: Sequence[tuple[int, float]],
) -> "Figure | None":
    """A line of devices, efficiency and the ends of its band for each label; None without lines, DpscopeError for too many."""
    if not lines:
        return None
    if len(lines) > _MOST_LINES:
        raise DpscopeError(
            f"--figure would hold {counted(len(lines), 'line')}; vary at most {_MOST_LINES} configurations besides --devices"
        )
    import matplotlib as mpl

    from dpscope.analysis.figures.style import STYLE, literal, new_figure

    with mpl.rc_context(STYLE):
        drawn, (axes,) = new_figure(rows=9)
        for label, points in lines.items():
            devices, values, low, high = zip(*points, strict=True)
            percents = [[100 * value for value in column] for column in (values, low, high)]
            axes.fill_between(devices, percents[1], percents[2], alpha=0.25 / len(lines) ** 0.5, linewidth=0)
            axes.plot(devices, percents[0], marker=".", label=literal(label or "predicted") + ", 90% band")
        if measured:
            devices, values = zip(*measured, strict=True)
            percents = [100 * value for value in values]
            axes.plot(devices, percents, "o", color="black", fillstyle="none", label="measured")
        ticks = sorted({point[0] for points in (*lines.values(), measured) for point in points})
        if ticks[-1] >= _LOGARITHMIC * ticks[0]:
            axes.set_xscale("log", base=2)
            axes.minorticks_off()
        axes.set(xlabel="devices", ylabel="efficiency t_1 / t_N [%]", ylim=(0, None))
        axes.set_xticks(ticks, labels=[str(one) for one in ticks])
        axes.margins(x=0.05)
        axes.legend(loc="lower left")
    return drawn
