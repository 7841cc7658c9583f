"""A reduced trace gives the same measures as its source, and contains only what is read."""

import gzip
import json
from pathlib import Path

import pandas as pd
import pytest

from dpscope.analysis.bundle.reduced_trace import reduce_trace
from dpscope.analysis.traces.ranks.trace_analysis import analyze_traces
from dpscope.analysis.traces.reading.reader import read_trace
from dpscope.profiling.store.errors import DpscopeError
from tests.helpers.paths import DATA


@pytest.mark.long
@pytest.mark.parametrize("name", ["a100x2_ddp_resnet50_rank0", "v100x8_ddp_dlrm/rank0"])
def test_a_real_trace_measures_the_same(name: str, tmp_path: Path) -> None:
    source = DATA / f"{name}.json.gz"
    folder = tmp_path / "reduced"
    reduce_trace(source, folder / source.name)
    before, after = analyze_traces([source]), analyze_traces([folder / source.name])
    pd.testing.assert_frame_equal(after.steps, before.steps)
    pd.testing.assert_frame_equal(after.collectives, before.collectives)
    assert [finding.code for finding in after.findings] == [finding.code for finding in before.findings]
    whole, reduced = read_trace(source), read_trace(folder / source.name)
    assert (reduced.zero_ns, reduced.host, reduced.rank, reduced.world_size, reduced.device_names) == (
        whole.zero_ns,
        whole.host,
        whole.rank,
        whole.world_size,
        whole.device_names,
    )


def test_only_what_is_read_is_kept_and_times_keep_their_nanoseconds(tmp_path: Path) -> None:
    start = 1_700_000_000_000_000  # microseconds since 1970: a float would lose the fraction
    events = (
        f'{{"ph": "X", "cat": "cpu_op", "name": "aten::add", "pid": 7, "tid": 7, "ts": {start}.125, "dur": 2.5,'
        ' "args": {"Call stack": "/home/erika/train.py(3)", "Input Dims": [[2]]}},'
        f'{{"ph": "X", "cat": "python_function", "name": "/home/erika/x.py", "pid": 7, "tid": 7, "ts": {start}.0, "dur": 9}},'
        f'{{"ph": "s", "cat": "ac2g", "name": "ac2g", "id": 1, "pid": 7, "tid": 7, "ts": {start}.0}},'
        '{"ph": "M", "name": "process_name", "pid": 7, "tid": 0, "ts": 0, "args": {"name": "n0417", "path": "/x"}}'
    )
    source = tmp_path / "rank0.json"
    source.write_text(
        '{"distributedInfo": {"rank": 0, "world_size": 2, "backend": "nccl", "pg_config": "n0417"}, '
        f'"traceName": "/home/erika/t", "host_name": "n0417", "baseTimeNanoseconds": 5, "traceEvents": [{events}]}}'
    )
    target = tmp_path / "reduced.json.gz"
    reduce_trace(source, target, lambda text: text.replace("n0417", "host0"))
    content = json.loads(gzip.decompress(target.read_bytes()))
    assert content == {
        "traceEvents": [
            {"ph": "X", "cat": "cpu_op", "name": "aten::add", "pid": 7, "tid": 7, "ts": 0.125, "dur": 2.5,
             "args": {"Input Dims": [[2]]}},
            {"ph": "M", "name": "process_name", "pid": 7, "tid": 0, "ts": 0, "args": {"name": "host0"}},
        ],
        "distributedInfo": {"backend": "nccl", "rank": 0, "world_size": 2},
        "host_name": "host0",
        "deviceProperties": [],
        "baseTimeNanoseconds": 5 + 1000 * start,
    }  # fmt: skip


def test_an_invalid_trace_leaves_no_file(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text("[1, 2]")
    with pytest.raises(DpscopeError, match="not a torch"):
        reduce_trace(tmp_path / "x.json", tmp_path / "y.json.gz")
    assert [path.name for path in tmp_path.iterdir()] == ["x.json"]
