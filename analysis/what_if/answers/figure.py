"""Efficiency over devices: the predictions with their band, and the points that were measured."""

from pathlib import Path
from typing import TYPE_CHECKING

from dpscope.analysis.what_if.answers.output import RunAnswer
from dpscope.profiling.store.errors import DpscopeError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_KINDS = (".png", ".svg", ".pdf")


def check_figure_name(path: Path) -> None:
    """Raise DpscopeError for a name of another kind, and for a folder that is not there."""
    if path.suffix not in _KINDS:
        raise DpscopeError(f"{path} must end in {', '.join(_KINDS)}")
    if not path.parent.is_dir():
        raise DpscopeError(f"{path.parent} does not exist; make it first")


def write_figure(said: RunAnswer, path: Path) -> None:
    """Draw it. Raises DpscopeError where no scenario has an efficiency."""
    drawn = efficiency_figure(said)
    if drawn is None:
        raise DpscopeError("nothing to draw: no scenario has an efficiency; --format table says why")
    drawn.savefig(path)


def efficiency_figure(said: RunAnswer) -> "Figure | None":
    """The figure; None where no scenario has an efficiency."""
    points = sorted(
        (
            one.devices,
            one.efficiency,
            one.efficiency * one.step_us / one.high_us,
            one.efficiency * one.step_us / one.low_us,
        )
        for _, _, one in said.predictions
        if one.efficiency is not None and one.step_us and one.low_us and one.high_us
    )
    if not points:
        return None
    import matplotlib as mpl

    from dpscope.analysis.figures.style import STYLE

    with mpl.rc_context(STYLE):
        return _drawn(points, _measured(said))


def _drawn(points: list[tuple[int, float, float, float]], measured: list[tuple[int, float]]) -> "Figure":
    from dpscope.analysis.figures.colours import COLOURS
    from dpscope.analysis.figures.style import new_figure

    drawn, (axes,) = new_figure(rows=9)
    devices = [one[0] for one in points]
    axes.fill_between(
        devices, [100 * one[2] for one in points], [100 * one[3] for one in points], alpha=0.25, linewidth=0
    )
    axes.plot(devices, [100 * one[1] for one in points], marker=".", label="predicted, 90% band")
    if measured:
        axes.plot(*zip(*measured, strict=True), "o", color=COLOURS["ddp"], label="measured")
    axes.set(xlabel="devices", ylabel="efficiency t_1 / t_N [%]", ylim=(0, None), xticks=sorted({*devices}))
    axes.legend(loc="lower left")
    return drawn


def _measured(said: RunAnswer) -> list[tuple[int, float]]:
    """Devices and efficiency of the run's own DDP cells at the base's batch."""
    base = said.question.base
    alone = base.single_us.get(base.batch_size) if base.batch_size is not None else None
    if alone is None:
        return []
    suffix = f"-b{base.batch_size}"
    found = [(base.devices, 100 * alone / base.step_us)]
    for one in said.own.cells:
        if one.cell.endswith(suffix) and one.cell.startswith("ddp-d"):
            found.append((int(one.cell.removeprefix("ddp-d").split("-")[0]), 100 * alone / one.measured_us))
    return sorted(found)
