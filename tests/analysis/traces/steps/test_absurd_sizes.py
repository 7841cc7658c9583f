"""Sizes of gloo's collectives that no machine could hold: they are unknown, and the steps' times
stay."""

import gzip
import json
from pathlib import Path

import pytest

from dpscope.analysis.traces.ranks.job import Job
from dpscope.analysis.traces.ranks.trace_analysis import analyze_traces
from tests.helpers.paths import EXAMPLE_RUN

LARGEST = 2**63 - 1


TRACE = EXAMPLE_RUN / "cells" / "ddp-d2-b8" / "repeat0" / "traces" / "0_0.pt.trace.json.gz"


@pytest.fixture(scope="module")
def before() -> Job:
    return analyze_traces([TRACE])


@pytest.mark.long
@pytest.mark.parametrize(
    "dims",
    [
        [LARGEST],
        [2**32, 2**32],
        [LARGEST, LARGEST, LARGEST],
        [2**46],
        [1] * 100_000,
        [[LARGEST], [LARGEST]],
    ],
    ids=["2^63 - 1", "a product", "a product of bytes", "64 TiB", "dimensions", "a sum"],
)
def test_an_absurd_size_is_unknown(tmp_path: Path, before: Job, dims: list[object]) -> None:
    content = json.loads(gzip.decompress(TRACE.read_bytes()))
    for event in content["traceEvents"]:
        if event.get("name", "").startswith(("gloo:", "c10d::")) and "Input Dims" in event["args"]:
            event["args"] |= {"Input Dims": [dims], "Input type": ["float"]}
    path = tmp_path / "0_0.pt.trace.json"
    path.write_text(json.dumps(content))
    found = analyze_traces([path])
    assert found.collectives["bytes"].isna().all()
    assert before.collectives["bytes"].notna().any()
    assert found.steps["step_us"].tolist() == before.steps["step_us"].tolist()
    assert found.steps["communication_us"].tolist() == before.steps["communication_us"].tolist()
