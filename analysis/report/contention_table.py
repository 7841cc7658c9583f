"""The operators that suffer most from communication next to them, in each cell."""

from dpscope.analysis.cells.comparison import Comparison
from dpscope.analysis.text.text_table import TextTable
from dpscope.analysis.text.units import NA, choose_unit, show

_MOST_OPERATORS = 5


def contention_table(comparison: Comparison) -> TextTable | None:
    """All operators of a cell, then the five that cost most: ratio with its interval, cost per step, net gain of hiding."""
    found = []
    for cell, one in comparison.contentions.items():
        hidden_us = comparison.ledgers[cell].hidden_us
        if one.every is None or hidden_us is None:
            continue
        for each in (one.every, *one.by_operator[:_MOST_OPERATORS]):
            own_us = hidden_us * each.overlapped_us / one.every.overlapped_us
            found.append((cell, each, own_us))
    if not found:
        return None
    unit = choose_unit("time", [own_us for _, _, own_us in found])
    rows = tuple(
        (
            cell,
            one.operator or "all operators",
            f"{one.ratio:.2f}",
            f"{one.ratio_interval.low:.2f} to {one.ratio_interval.high:.2f}" if one.ratio_interval is not None else NA,
            show(own_us, unit),
            show(one.cost_us(own_us), unit),
            show(own_us - one.cost_us(own_us), unit),
            f"{one.compared:.0%}",
        )
        for cell, one, own_us in found
    )
    return TextTable(
        "Contention: what hidden communication costs the compute next to it, per traced step",
        (
            "cell", "operator", "ratio", "95% interval", f"hidden [{unit.label}]", f"cost [{unit.label}]",
            f"net gain [{unit.label}]", "compared",
        ),
        rows,
        (
            "ratio: compute next to communication over the same compute on one device, or over the cell's own free kernels; "
            f"the {_MOST_OPERATORS} operators of each cell that cost most",
        ),
    )  # fmt: skip
