"""Efficiency over devices: the predictions with their band, and the points that were measured."""

from pathlib import Path
from typing import TYPE_CHECKING

from dpscope.analysis.what_if.answers.output import RunAnswer
from dpscope.profiling.records.finding import counted
from dpscope.profiling.store.errors import DpscopeError
from dpscope.profiling.store.files import write_bytes, write_text
from dpscope.profiling.store.ownership import check_overwritable

if TYPE_CHECKING:
    from matplotlib.figure import Figure

EfficiencyPoint = tuple[int, float, float, float]  # devices, efficiency and the ends of its band
_MOST_LINES = 8  # that a reader tells apart
_LOGARITHMIC = 8  # times the least count, from which small counts would stand on each other
_KINDS = (".png", ".svg", ".pdf")


def check_figure_name(path: Path) -> None:
    """Raise DpscopeError for a name of another kind, a folder that is not there and a file that is not dpscope's."""
    if path.suffix not in _KINDS:
        raise DpscopeError(f"{path} must end in {', '.join(_KINDS)}")
    if not path.parent.is_dir():
        raise DpscopeError(f"{path.parent} does not exist; make it first")
    check_overwritable(path)


def write_figure(said: RunAnswer, path: Path) -> None:
    """Draw it. Raises DpscopeError where no scenario has an efficiency, and where there are too many."""
    drawn = efficiency_figure(said)
    if drawn is None:
        raise DpscopeError("nothing to draw: no scenario has an efficiency; --format table says why")
    if (lines := len(_lines(said))) > _MOST_LINES:
        raise DpscopeError(
            f"--figure would hold {counted(lines, 'line')}; ask for {_MOST_LINES} or fewer beside --devices"
        )
    from dpscope.analysis.figures.draw import to_pdf, to_png, to_svg

    check_overwritable(path)
    if path.suffix == ".svg":
        write_text(path, to_svg(drawn))
    else:
        write_bytes(path, to_png(drawn) if path.suffix == ".png" else to_pdf(drawn))


def efficiency_figure(said: RunAnswer) -> "Figure | None":
    """The figure; None where no scenario has an efficiency."""
    lines = _lines(said)
    if not lines:
        return None
    import matplotlib as mpl

    from dpscope.analysis.figures.style import STYLE

    with mpl.rc_context(STYLE):
        return _drawn(lines, _measured(said))


def _lines(said: RunAnswer) -> dict[str, list[EfficiencyPoint]]:
    """A line for everything that is asked beside the number of devices, by what it is called."""
    found: dict[str, list[EfficiencyPoint]] = {}
    for words, _, one in said.predictions:
        if one.efficiency is None or not one.step_us or not one.low_us or not one.high_us:
            continue
        called = ", ".join(f"{name.replace('_', ' ')} {word}" for name, word in words.items() if name != "devices")
        ends = (one.efficiency * one.step_us / one.high_us, one.efficiency * one.step_us / one.low_us)
        found.setdefault(called, []).append((one.devices, one.efficiency, *ends))
    return {called: sorted(points) for called, points in found.items()}


def _drawn(lines: dict[str, list[EfficiencyPoint]], measured: list[tuple[int, float]]) -> "Figure":
    from dpscope.analysis.figures.style import literal, new_figure

    drawn, (axes,) = new_figure(rows=9)
    for called, points in lines.items():
        devices = [one[0] for one in points]
        low, high = ([100 * one[end] for one in points] for end in (2, 3))
        axes.fill_between(devices, low, high, alpha=0.25 / len(lines) ** 0.5, linewidth=0)
        values = [100 * one[1] for one in points]
        axes.plot(devices, values, marker=".", label=literal(called or "predicted") + ", 90% band")
    if measured:
        axes.plot(*zip(*measured, strict=True), "o", color="black", fillstyle="none", label="measured")
    ticks = sorted({point[0] for points in lines.values() for point in points} | {one for one, _ in measured})
    if ticks[-1] >= _LOGARITHMIC * ticks[0]:
        axes.set_xscale("log", base=2)
        axes.minorticks_off()
    axes.set(xlabel="devices", ylabel="efficiency t_1 / t_N [%]", ylim=(0, None))
    axes.set_xticks(ticks, labels=[str(one) for one in ticks])
    axes.margins(x=0.05)
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
