"""The finding that names a cell's straggler."""

from collections.abc import Sequence

from dpscope.analysis.runs.cell_data import CellData
from dpscope.analysis.text.units import show_time
from dpscope.profiling.records.finding import Finding
from dpscope.profiling.records.run_codes import RunCode


def straggler_finding(data: CellData) -> list[Finding]:
    """A warning that names the cell's straggler; empty where there is none."""
    named = data.straggler
    if named is None:
        return []
    return [
        RunCode.STRAGGLER.finding(
            f"{data.cell.name}: rank {named.rank} is the straggler: the others wait for it in {named.steps} of "
            f"{named.of_steps} traced steps, {show_time(named.lateness_us)} a step (their mean), {_of_all(named.shares)}; "
            f"chance alone would single out some rank in {named.chance:.1g} of such runs",
            f"see what rank {named.rank} does before its first collective: data, other load, a slower device",
        )
    ]


def _of_all(shares: Sequence[float]) -> str:
    """The part of all waiting that every repeat shows, such as ``at least 93% of all waiting in each repeat``."""
    least = f"{min(shares):.0%}"
    if least == "100%":
        return "all of the waiting"
    return f"{least} of all waiting" if len(shares) == 1 else f"at least {least} of all waiting in each repeat"
