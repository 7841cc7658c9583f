"""What makes a DataParallel step longer or shorter than DDP's, part by part: the parts add up to the gap."""

from dataclasses import dataclass

from dpscope.analysis.cells.comparison import Comparison, StrategyGap
from dpscope.analysis.cells.row import minus
from dpscope.analysis.runs.cell_data import CellData
from dpscope.analysis.runs.run_data import RunData
from dpscope.analysis.traces.data_parallel.launches import PHASES


@dataclass(frozen=True)
class WaterfallPart:
    """One step of the waterfall; `key` names its colour, microseconds are DP minus DDP."""

    key: str
    label: str
    gap_us: float


_NAMED = {  # phase -> colour and label
    "scatter": ("scatter", "scatter"),
    "replicate": ("replicate", "replicate"),
    "gather": ("gather", "gather"),
    "loss_backward": ("scatter", "copies in backward"),
    "gradient_reduce": ("gradient_reduce", "gradient reduce"),
}


def gap_parts(run: RunData, comparison: Comparison, gap: StrategyGap) -> tuple[WaterfallPart, ...] | None:
    """The parts of one gap, without empty ones; None if the traces do not show them all.

    DDP's exposed communication is subtracted first, DataParallel's is added phase by phase, then the changes of host
    copies, compute and idle, and what the traced steps leave of the untraced gap.
    """
    dp_us, ddp_us = (comparison.rows[name].exposed_us for name in (gap.dp, gap.ddp))
    # dp-host's own copying is its communication, and is counted by phase here.
    dp_copies_us = dp_us if run.cells[gap.dp].cell.traits.host_copies else 0.0
    copies_us = minus(gap.host_copies_us, dp_copies_us)
    known = (gap.compute_us, gap.idle_us, gap.tracer_us, copies_us, dp_us, ddp_us)
    if any(value is None for value in known):
        return None
    compute, idle, tracer, copies, of_dp, of_ddp = (value or 0.0 for value in known)
    by_phase = exposed_by_phase(run.cells[gap.dp])
    parts = [
        WaterfallPart("exposed", "DDP's exposed communication", -of_ddp),
        *(WaterfallPart(*_NAMED.get(name, (name, name)), value) for name, value in by_phase.items()),
        WaterfallPart("exposed", "other exposed communication", of_dp - sum(by_phase.values())),
        WaterfallPart("host_copies", "host copies", copies),
        WaterfallPart("compute", "compute", compute),
        WaterfallPart("idle", "idle", idle),
        WaterfallPart("tracer", "tracer", tracer),
    ]
    return tuple(part for part in parts if abs(part.gap_us) > 1e-3)


def exposed_by_phase(data: CellData) -> dict[str, float]:
    """Exposed communication of each DataParallel phase on the critical device, mean over whole steps, microseconds."""
    windows, phases = data.critical_windows, data.dp_phases
    if windows.empty or phases.empty:
        return {}
    keys = ["repeat", "rank", "device", "step"]
    own = phases[phases["replica"].isna()].merge(windows[keys], on=keys)
    sums = own.groupby("phase")["exposed_us"].sum()
    return {name: float(sums[name]) / len(windows) for name in PHASES if name in sums.index and sums[name] > 0}
