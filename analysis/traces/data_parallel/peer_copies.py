"""nn.DataParallel's model moved by copies between GPUs, where NCCL is not used."""

import numpy as np

from dpscope.analysis.traces.data_parallel.launches import PHASES, launch_phases
from dpscope.analysis.traces.data_parallel.phases import is_data_parallel
from dpscope.analysis.traces.reading.event_table import BoolColumn, IntColumn
from dpscope.analysis.traces.reading.table import Table
from dpscope.analysis.traces.steps.attribution import Attribution
from dpscope.analysis.traces.steps.event_kind import Kind


def peer_copies(attribution: Attribution) -> Table:
    """Copies between devices per (rank, device, step): columns rank, device, step, bytes, model_bytes, count.

    `model_bytes` is the part that DataParallel launched in replicating and in reducing gradients: not of inputs and outputs.
    """
    events = attribution.events
    rows = np.flatnonzero(attribution.rows(Kind.PEER_COPY) & (attribution.step >= 0))
    copies = Table.of(
        rank=np.zeros(len(rows), dtype=np.int64),
        device=events.device[rows],
        step=[attribution.steps.numbers[step] for step in attribution.step[rows]],
    )
    places = copies.group("device", "step", in_order=True)
    sizes, of_model = events.bytes[rows], _moves_the_model(attribution, rows)
    totals = np.zeros((2, len(places)), dtype=np.int64)
    np.add.at(totals[0], places.code, sizes)
    np.add.at(totals[1], places.code, np.where(of_model, sizes, 0))
    return copies.take(places.first).assign(
        rank=attribution.trace.rank, bytes=totals[0], model_bytes=totals[1], count=places.sizes
    )


def _moves_the_model(attribution: Attribution, rows: IntColumn) -> BoolColumn:
    if not len(rows) or not is_data_parallel(attribution):
        return np.zeros(len(rows), dtype=np.bool_)
    moving = [PHASES.index(name) for name in ("replicate", "gradient_reduce")]
    return np.isin(launch_phases(attribution).phase[rows], moving)
