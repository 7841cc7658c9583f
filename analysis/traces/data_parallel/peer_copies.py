"""nn.DataParallel's model moved by copies between GPUs, where NCCL is not used."""

import numpy as np
import pandas as pd

from dpscope.analysis.traces.data_parallel.launches import PHASES, launch_phases
from dpscope.analysis.traces.data_parallel.phases import is_data_parallel
from dpscope.analysis.traces.reading.event_table import BoolColumn, IntColumn
from dpscope.analysis.traces.steps.attribution import Attribution
from dpscope.analysis.traces.steps.event_kind import Kind


def peer_copies(attribution: Attribution) -> pd.DataFrame:
    """Copies between devices per (device, step): columns device, step, bytes, model_bytes, count.

    `model_bytes` is the part that DataParallel launched in replicating and in reducing gradients: not of inputs and outputs.
    """
    events = attribution.events
    rows = np.flatnonzero(attribution.rows(Kind.PEER_COPY) & (attribution.step >= 0))
    frame = pd.DataFrame(
        {
            "device": events.device[rows],
            "step": [attribution.steps.numbers[step] for step in attribution.step[rows]],
            "bytes": events.bytes[rows],
            "model_bytes": np.where(_moves_the_model(attribution, rows), events.bytes[rows], 0),
            "count": 1,
        }
    )
    return frame.groupby(["device", "step"], as_index=False, dropna=False).sum()


def _moves_the_model(attribution: Attribution, rows: IntColumn) -> BoolColumn:
    if not len(rows) or not is_data_parallel(attribution):
        return np.zeros(len(rows), dtype=np.bool_)
    moving = [PHASES.index(name) for name in ("replicate", "gradient_reduce")]
    return np.isin(launch_phases(attribution).phase[rows], moving)
