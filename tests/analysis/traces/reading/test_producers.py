"""Files in Chrome's format by other programs are named; they are no traces whose training ended too early."""

import json
from pathlib import Path
from typing import Any

import pytest

from dpscope.analysis.traces.ranks.trace_analysis import analyze_traces
from dpscope.analysis.traces.reading.reader import read_trace
from dpscope.profiling.store.errors import DpscopeError
from tests.helpers.made_traces import operator, step, write

# As the programs write them: horovod/common/timeline.cc, torch/autograd/profiler_util.py (export_chrome_trace),
# composer/profiler/json_trace_handler.py.
HOROVOD = [
    {"name": "process_name", "ph": "M", "pid": 1, "args": {"name": "DistributedOptimizer_Allreduce/conv1"}},
    *({"ph": "B", "name": "NEGOTIATE_ALLREDUCE", "ts": 10 * index, "pid": 1} for index in range(3)),
    *({"ph": "X", "name": str(index), "ts": index, "pid": 1, "dur": 0} for index in range(2)),
    *({"ph": "B", "name": "NCCL_ALLREDUCE", "ts": 5 + 10 * index, "pid": 1} for index in range(3)),
    {"ph": "E", "ts": 40, "pid": 1},
]
LEGACY = [
    {"name": name, "ph": "X", "ts": 1.5, "dur": 2.5, "tid": 1, "pid": process, "args": {}}
    for name, process in (("aten::add", "CPU functions"), ("MyFunction", "CPU functions"), ("add", "CUDA functions"))
]
COMPOSER = [
    {"name": "batch", "cat": "composer/trainer", "ph": "B", "ts": 1, "pid": 0, "tid": 1},
    {"name": "forward", "cat": "composer/trainer", "ph": "B", "ts": 2, "pid": 0, "tid": 1},
    {"name": "forward", "cat": "composer/trainer", "ph": "E", "ts": 5, "pid": 0, "tid": 1},
]
OTHER = [{"name": "frame", "cat": "devtools.timeline", "ph": "X", "ts": 1, "dur": 4, "pid": 0, "tid": 1}] * 5


@pytest.mark.parametrize(
    ("events", "named", "count"),
    [
        (HOROVOD, "a timeline by Horovod", "8 events"),
        (LEGACY, "a trace by the legacy torch.autograd.profiler", "3 events"),
        (COMPOSER, "a trace by Composer's own profiler", "2 events"),
        (OTHER, "a trace of another program", "5 events"),
        (OTHER[:1], "a trace of another program", "1 event "),
    ],
)
@pytest.mark.parametrize("bare", [True, False])
def test_files_of_other_programs_are_named(
    tmp_path: Path, events: list[dict[str, Any]], named: str, count: str, bare: bool
) -> None:
    path = tmp_path / "timeline.json"
    path.write_text(json.dumps(events if bare else {"traceEvents": events}))
    with pytest.raises(DpscopeError, match=f"timeline.json is {named}, not by torch.profiler: none of its {count}"):
        read_trace(path)


def test_among_traces_they_are_left_out_with_a_finding(tmp_path: Path) -> None:
    write(tmp_path, [step(1, 0, 100), operator("aten::mm", 10, 50)], world_size=1)
    (tmp_path / "timeline.json").write_text(json.dumps(HOROVOD))
    (finding,) = [one for one in analyze_traces([tmp_path]).findings if one.code == "file_not_read"]
    assert "is a timeline by Horovod" in finding.message


def test_a_trace_of_torch_profiler_without_its_own_work_is_still_one(tmp_path: Path) -> None:
    """What Kineto itself adds: the span of the trace, python frames, the profiler's overhead."""
    own = [{"ph": "X", "cat": cat, "name": "n", "pid": 0, "tid": 0, "ts": 1, "dur": 5} for cat in ("Trace", "overhead")]
    path = tmp_path / "empty.json"
    path.write_text(json.dumps({"traceEvents": [*own, {**own[0], "cat": "python_function"}]}))
    assert not len(read_trace(path).events)
    assert "no_events" in {finding.code for finding in analyze_traces([path]).findings}
