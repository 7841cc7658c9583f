"""Exposed stretches: they add up to the breakdown's exposed communication, on devices, CPUs and for DataParallel."""

from pathlib import Path

import pandas as pd
import pytest

from dpscope.analysis.traces.ranks.frames import step_breakdown
from dpscope.analysis.traces.reading.reader import read_traces
from dpscope.analysis.traces.steps.attribution import attribute
from dpscope.analysis.traces.steps.breakdown import exposed_stretches
from tests.helpers.paths import DATA, EXAMPLE_RUN

TRACES = {
    "a device of DDP": DATA / "a100x2_ddp_resnet50_rank0.json.gz",
    "integer microseconds": DATA / "v100x8_ddp_dlrm" / "rank3.json.gz",
    "gloo on a CPU": EXAMPLE_RUN / "cells/ddp-d2-b8/repeat0/traces/0_0.pt.trace.json.gz",
    "dp-host": EXAMPLE_RUN / "cells/dp-host-d2-b8/repeat0/traces/0_0.pt.trace.json.gz",
}


@pytest.mark.parametrize("path", TRACES.values(), ids=TRACES)
def test_stretches_add_up_to_exposed_communication(path: Path) -> None:
    (trace,) = read_traces(path)
    attribution = attribute(trace)
    steps, stretches = step_breakdown(attribution), exposed_stretches(attribution).frame
    keys = ["rank", "device", "step"]
    lengths = stretches.assign(length_us=stretches["end_us"] - stretches["start_us"])
    sums = lengths.groupby(keys, dropna=False)["length_us"].sum().reset_index()
    both = steps.merge(sums, on=keys, how="left").fillna({"length_us": 0.0})
    assert len(both) == len(steps) > 0
    assert float(steps["exposed_us"].sum()) > 0
    assert both["length_us"].astype(float).tolist() == pytest.approx(
        both["exposed_us"].astype(float).tolist(), abs=1e-3
    )
    assert _disjoint(stretches)


def _disjoint(stretches: pd.DataFrame) -> bool:
    return all(
        (group["start_us"].to_numpy()[1:] >= group["end_us"].to_numpy()[:-1]).all()
        for _, group in stretches.sort_values("start_us").groupby(["rank", "device", "step"], dropna=False)
    )
