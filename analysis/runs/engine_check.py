"""Whether the NCCL engine that ran a DDP cell let it overlap communication with its backward pass."""

from collections.abc import Sequence

import pandas as pd

from dpscope.analysis.text.units import show_time
from dpscope.profiling.records.finding import Finding
from dpscope.profiling.records.run import Cell, RankResult
from dpscope.profiling.records.run_codes import RunCode

SUSPECT = "ProcessGroupNCCL2"
_NEXT_TO_NOTHING = 0.05  # of a step's communication


def engine_findings(
    cell: Cell, ranks: Sequence[RankResult], windows: pd.DataFrame, collectives: pd.DataFrame
) -> list[Finding]:
    """`engine_hides_nothing` where the engine ran an overlapping DDP cell of several buckets and nothing was hidden.

    In torch 2.15's library its `getFuture()` makes the current stream wait, which would put DDP's all-reduces one after another
    with its backward pass. Read from the library, not confirmed on hardware. `windows` are whole traced steps.
    """
    if not cell.traits.reducer or cell.options.overlap == "off" or SUSPECT not in {rank.nccl_engine for rank in ranks}:
        return []
    if windows.empty or collectives.empty or _buckets(collectives) < 2:
        return []  # the only bucket is complete when backward is over: nothing could be hidden
    communication_us, hidden_us = (float(windows[name].mean()) for name in ("communication_us", "hidden_us"))
    if not communication_us > 0 or not hidden_us < _NEXT_TO_NOTHING * communication_us:
        return []
    return [
        RunCode.ENGINE_HIDES_NOTHING.finding(
            f"{cell.name}: {hidden_us / communication_us:.0%} of its communication ({show_time(communication_us)} a step) is "
            f"hidden behind compute, and {SUSPECT} ran it: that engine may make DDP wait for every bucket (not confirmed on "
            "hardware)."
        )
    ]


def _buckets(collectives: pd.DataFrame) -> int:
    """All-reduces of a rank in a step, of most steps."""
    reduced = collectives[(collectives["kind"] == "all_reduce") & collectives["step"].notna()]
    counts = reduced.groupby(["repeat", "rank", "step"]).size()
    return int(counts.median()) if len(counts) else 0
