"""`dpscope run --detect 5%`: repeats until two such runs would show a change that large, or the
time is over.
"""

import math
import time
from collections.abc import Mapping
from pathlib import Path

from rich.console import Console

from dpscope.analysis.runs.run_data import repeat_costs
from dpscope.analysis.stats.detection import RepeatCost, choose_repeats
from dpscope.analysis.text.units import show_share
from dpscope.launch.jobs.job_queue import THIS_HOST, JobStarter, Outcome, duration_text
from dpscope.launch.measuring.run import run_sweep
from dpscope.profiling.records.config import Measurement, RunConfig
from dpscope.profiling.records.finding import counted
from dpscope.profiling.records.run import CellResult
from dpscope.profiling.records.settings import with_settings
from dpscope.profiling.store.errors import DpscopeError
from dpscope.profiling.store.folders import RunFolder, is_run_folder

FIRST_REPEATS = 3  # the fewest that show the noise
MOST_ROUNDS = 4  # of choosing again from what has been measured since


def check_limit(limit_s: float | None) -> None:
    """Raise DpscopeError for a --detect-limit that is no time."""
    if limit_s is not None and not (math.isfinite(limit_s) and limit_s > 0):
        raise DpscopeError(f"--detect-limit {limit_s:g}: must be above 0 seconds")


def first_round(config: RunConfig) -> RunConfig:
    """The configuration of the first repeats; raises DpscopeError where a file gives repeats as
    well.
    """
    repeats = config.measurement.repeats
    if repeats != Measurement().repeats:
        raise DpscopeError(
            f"--detect and repeats = {repeats}: --detect chooses the repeats; give one of them"
        )
    return with_settings(config, repeats=FIRST_REPEATS)


def run_until_detected(
    config: RunConfig,
    out: Path,
    fresh: bool,
    console: Console,
    change: float,
    limit_s: float,
    starter: JobStarter = THIS_HOST,
) -> Outcome[CellResult]:
    """Measure `config`'s first repeats of every cell, then as many more of each as `change` needs,
    within `limit_s` in all.

    Earlier results in the folder count; how many repeats it is to hold is chosen again.
    """
    began = time.monotonic()
    stored = RunFolder(out).manifest().repeats_by_cell if is_run_folder(out) and not fresh else {}
    outcome = run_sweep(config, out, fresh, console, stored, starter)
    for _ in range(MOST_ROUNDS):
        if not outcome.ok:
            break
        cells = repeat_costs(RunFolder(out))
        if not cells:
            raise DpscopeError(
                f"--detect: {out} has too few timed steps to show its noise; time more (--steps)"
            )
        left_s = max(0.0, limit_s - (time.monotonic() - began))
        chosen = choose_repeats(cells, change, left_s)
        console.print(choice_text(cells, chosen, change, limit_s), highlight=False, soft_wrap=True)
        measured = all(chosen[name] == cell.noise.repeats for name, cell in cells.items())
        if measured and chosen == stored:
            break
        most, stored = max(chosen.values()), chosen
        outcome = run_sweep(
            with_settings(config, repeats=most), out, False, console, chosen, starter
        )
        if measured:
            break
    return outcome


def choice_text(
    cells: Mapping[str, RepeatCost], chosen: Mapping[str, int], change: float, limit_s: float
) -> str:
    """What was chosen and why, a line per cell."""
    lines = [
        f"Repeats that show a change of {100 * change:g}% between two such runs (in 4 of 5 cases):"
    ]
    for name, cell in cells.items():
        had, now = cell.noise.repeats, chosen[name]
        shows = cell.detects(now)
        reason = (
            ""
            if shows <= change
            else f"; the limit of {duration_text(limit_s)} or of repeats allows no more"
        )
        before = (
            "" if now == had else f"{show_share(cell.detects(had))} with {counted(had, 'repeat')}; "
        )
        lines.append(f"  {name}: {before}{show_share(shows)} with {counted(now, 'repeat')}{reason}")
    return "\n".join(lines)
