"""Steps with many more collectives than the others, which make means over all steps misleading."""

from collections.abc import Iterator

import numpy as np

from dpscope.analysis.text.units import show_time
from dpscope.analysis.traces.reading.table import Table
from dpscope.profiling.records.finding import Finding, counted
from dpscope.profiling.records.trace_codes import TraceCode

TIMES_AS_MANY = 2.0  # collectives of a step over the median of its rank's steps
_FEWEST_STEPS = 3  # whole windows of a rank: of two none is the usual one
_NAMED = 3


def uneven_steps(steps: Table) -> Iterator[Finding]:
    """One finding for a job in which some steps hold TIMES_AS_MANY collectives; `steps` are rows of `step_table`."""
    if not len(steps):
        return
    whole = steps.take(~steps.truths("partial_window", missing=True) & steps.known("exposed_us"))
    places = whole.group("rank", "device")
    counts = np.nan_to_num(whole.real("collective_count"))
    medians = [float(np.median(counts[rows])) for rows in places.rows()]
    usual = np.array(medians)[places.code] if medians else counts
    many = (places.sizes[places.code] >= _FEWEST_STEPS) & (usual > 0) & (counts >= TIMES_AS_MANY * usual)
    if not many.any():
        return
    place = int(np.where(many, counts, 0.0).argmax())
    numbers = np.unique(whole["step"][many & whole.known("step")]).tolist()
    exposed_us = whole["exposed_us"]
    named = ", ".join(str(number) for number in numbers[:_NAMED])
    more = f" and {len(numbers) - _NAMED} more" if len(numbers) > _NAMED else ""
    mean_us, median_us = float(exposed_us.mean()), float(np.median(exposed_us))
    yield TraceCode.STEPS_UNEVEN.finding(
        f"{counted(len(numbers), 'step')} (step {named}{more}) {'holds' if len(numbers) == 1 else 'hold'} at least "
        f"{TIMES_AS_MANY:g} times as many collectives as usual: {counts[place]:.0f} in step {whole['step'][place]}, "
        f"{usual[place]:g} in the median step; exposed communication is {show_time(mean_us)} in the mean "
        f"over steps and {show_time(median_us)} in the median"
    )
