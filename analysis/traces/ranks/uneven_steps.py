"""Steps with many more collectives than the others, which make means over all steps misleading."""

from collections.abc import Iterator

import pandas as pd

from dpscope.analysis.text.units import show_time
from dpscope.profiling.records.finding import Finding, counted
from dpscope.profiling.records.trace_codes import TraceCode

TIMES_AS_MANY = 2.0  # collectives of a step over the median of its rank's steps
_FEWEST_STEPS = 3  # whole windows of a rank: of two none is the usual one
_NAMED = 3


def uneven_steps(steps: pd.DataFrame) -> Iterator[Finding]:
    """One finding for a job in which some steps hold TIMES_AS_MANY collectives; `steps` are rows of `step_breakdown`."""
    if steps.empty:
        return
    whole = steps[~steps["partial_window"].fillna(True).astype(bool) & steps["exposed_us"].notna()].reset_index(
        drop=True
    )
    places = whole.groupby(["rank", "device"], dropna=False)
    counts = whole["collective_count"].fillna(0).astype(float)
    usual = places["collective_count"].transform("median").fillna(0.0).astype(float)
    many = (places["step"].transform("size") >= _FEWEST_STEPS) & (usual > 0) & (counts >= TIMES_AS_MANY * usual)
    if not many.any():
        return
    place = int(counts.where(many, 0.0).argmax())
    numbers = sorted(whole.loc[many, "step"].dropna().unique())
    named = ", ".join(str(number) for number in numbers[:_NAMED])
    more = f" and {len(numbers) - _NAMED} more" if len(numbers) > _NAMED else ""
    mean_us, median_us = float(whole["exposed_us"].mean()), float(whole["exposed_us"].median())
    yield TraceCode.STEPS_UNEVEN.finding(
        f"{counted(len(numbers), 'step')} (step {named}{more}) {'holds' if len(numbers) == 1 else 'hold'} at least "
        f"{TIMES_AS_MANY:g} times as many collectives as usual: {counts.iloc[place]:.0f} in step {whole['step'].iloc[place]}, "
        f"{usual.iloc[place]:g} in the median step; exposed communication is {show_time(mean_us)} in the mean "
        f"over steps and {show_time(median_us)} in the median"
    )
