"""How much was computed when each collective was ready: by hand on generated traces, and streams that compute."""

import json
from pathlib import Path

import pytest

from dpscope.analysis.traces.ranks.trace_analysis import analyze_traces
from tests.generated_traces.generator import DdpOptions, ddp_trace, write_trace

# Kernels before the optimizer take 194 + 100 + 8 (forward, loss) and 100 + 100 + 60 + 20 us (backward): 582 us. Buckets
# follow the first, the second and the last kernel of the backward pass; buffers go before anything is computed.
COMPUTED = 582
DONE = {"broadcast": {0.0}, "all_reduce": {402 / COMPUTED, 502 / COMPUTED, 1.0}}


@pytest.mark.parametrize("named_ranges", [True, False])
def test_what_was_computed_when_each_bucket_was_ready(tmp_path: Path, named_ranges: bool) -> None:
    for rank in (0, 1):
        write_trace(ddp_trace(rank, options=DdpOptions(named_ranges=named_ranges)).trace, tmp_path / f"{rank}.json")
    table = analyze_traces(sorted(tmp_path.iterdir())).collectives
    assert len(table) == 2 * 3 * 5
    for (
        kind,
        expected,
    ) in DONE.items():  # torch's own range identifies the optimizer's kernels as well as dpscope's does
        found = set(table.loc[table["kind"] == kind, "compute_done"].astype(float).round(6))
        assert found == {round(one, 6) for one in expected}
    assert not table["compute_stream"].any()


def test_collectives_on_the_stream_of_kernels_are_known(tmp_path: Path) -> None:
    path = tmp_path / "0.json"
    write_trace(ddp_trace().trace, path)
    content = json.loads(path.read_text())
    for event in content["traceEvents"]:
        if event.get("cat") == "kernel" and "AllReduce" in event["name"]:
            event["tid"] = event["args"]["stream"] = 7
    path.write_text(json.dumps(content))
    table = analyze_traces([path]).collectives
    on_stream = table.groupby("kind")["compute_stream"].agg(["any", "all"])
    assert on_stream.loc["all_reduce"].all()
    assert not on_stream.loc["broadcast"].any()
