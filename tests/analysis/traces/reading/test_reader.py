"""Broken, odd and foreign trace files: what can be read is read, what is lost becomes a finding,
nothing crashes.
"""

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from dpscope.analysis.traces.ranks.frames import collectives
from dpscope.analysis.traces.ranks.trace_analysis import analyze_traces
from dpscope.analysis.traces.reading.chunks import ReadLimits
from dpscope.analysis.traces.reading.event_table import Trace
from dpscope.analysis.traces.reading.reader import read_trace
from dpscope.analysis.traces.steps.attribution import attribute
from dpscope.profiling.store.errors import DpscopeError
from tests.generated_traces.generator import DdpOptions, Layout, ddp_trace, trace_text, write_trace
from tests.helpers.known import codes
from tests.helpers.made_traces import Event, event, operator, step, write

GENERATED = ddp_trace(0, 2)
LAYOUTS: tuple[Layout, ...] = ("kineto", "one_line", "indented")


def events_of(trace: Trace) -> list[tuple[float, float, str]]:
    table = trace.events
    names = [table.names[code] for code in table.name]
    return list(zip(table.start_us.tolist(), table.duration_us.tolist(), names, strict=True))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("compressed", [False, True])
def test_every_layout_reads_alike(tmp_path: Path, layout: Layout, compressed: bool) -> None:
    name = "0_0.pt.trace.json" + (".gz" if compressed else "")
    trace = read_trace(write_trace(GENERATED.trace, tmp_path / name, layout))
    wanted = {
        "cpu_op",
        "user_annotation",
        "cuda_runtime",
        "cuda_driver",
        "kernel",
        "gpu_memcpy",
        "gpu_memset",
    }
    plain = [
        event
        for event in GENERATED.trace["traceEvents"]
        if event["ph"] == "X" and event["cat"] in wanted
    ]
    assert not trace.findings
    assert (trace.rank, trace.world_size, trace.backend) == (0, 2, "nccl")
    found = events_of(trace)
    assert len(found) == len(plain) > 100
    base = float(np.floor(min(one["ts"] for one in plain)))
    for (start, duration, name), one in zip(found, plain, strict=True):
        assert name == one["name"]
        assert start + base == pytest.approx(one["ts"], abs=1e-3)
        assert duration == pytest.approx(one["dur"], abs=1e-9)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("keep", [0.35, 0.6, 0.9])
def test_a_truncated_file_is_read_up_to_its_last_whole_event(
    tmp_path: Path, layout: Layout, keep: float
) -> None:
    whole = events_of(read_trace(write_trace(GENERATED.trace, tmp_path / "whole.json", layout)))
    cut = read_trace(write_trace(GENERATED.trace, tmp_path / "rank0.json", layout, keep=keep))
    assert cut.cut_short
    assert "trace_cut_short" in codes(cut)
    found = events_of(cut)
    assert 0 < len(found) < len(whole)
    assert found == whole[: len(found)]


def kernel_event(
    name: str = "gemm", duration: str = "194", start: str = "100", extra: str = "1"
) -> str:
    return (
        f'  {{\n    "ph": "X", "cat": "kernel", "name": "{name}", "pid": 0, "tid": 7,\n'
        f'    "ts": {start}, "dur": {duration},\n'
        f'    "args": {{\n      "device": 0, "stream": 7, "correlation": {extra}, "External id": {extra}\n    }}\n  }}'
    )


@pytest.mark.parametrize(
    ("damaged", "code", "kept"),
    [
        (kernel_event(duration="NaN"), "events_damaged", 2),
        (kernel_event(start="Infinity"), "events_damaged", 2),
        (kernel_event(name="ge\x01mm"), "events_damaged", 3),
        (kernel_event(name="\udcff\udcfe"), "events_damaged", 3),
        (kernel_event(name="ge\\u0001mm"), None, 3),
        (kernel_event(name='ge"mm'), "events_damaged", 2),
        (kernel_event(name='ge\\"mm'), None, 3),
        (kernel_event(duration="-5"), "events_damaged", 2),
        (kernel_event(extra="99999999999999999999999"), None, 3),
        (kernel_event(duration='"194"', start='"100.5"'), None, 3),
        (kernel_event(duration="0"), None, 3),
        (kernel_event(duration="null"), "events_damaged", 2),
    ],
)
def test_one_damaged_event_costs_no_other(
    tmp_path: Path, damaged: str, code: str | None, kept: int
) -> None:
    path, events = (
        tmp_path / "0_0.pt.trace.json",
        (kernel_event(name="first"), damaged, kernel_event(name="last")),
    )
    text = '{\n  "schemaVersion": 1,\n  "traceEvents": [\n' + ",\n".join(events) + "\n  ]\n}\n"
    path.write_bytes(text.encode(errors="surrogateescape"))
    trace = read_trace(path)
    names = [name for *_, name in events_of(trace)]
    assert (names[0], len(names), names[-1]) == ("first", kept, "last")
    assert codes(trace) == ({code} if code else set())


NO_TRACE = '"traceEvents" list'


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("empty.json", b"", "is empty"),
        ("blank.json", b"   \n", "is empty"),
        ("text.json", b"hello, world", "is not a torch.profiler trace"),
        ("object.json", b'{"a": [1, 2, 3]}', "is not a torch.profiler trace"),
        ("zip.json", b"PK\x03\x04 a zip file", "is not a torch.profiler trace"),
        ("list.json", b'[{"step": 1}, {"step": 2}]', "is a list without one trace event"),
        ("empty.json.gz", b"", "is empty, not a trace"),
        ("nothing.json.gz", gzip.compress(b""), "is an empty gzip file"),
        (
            "bytes.json.gz",
            gzip.compress(bytes(range(256)) * 20),
            f"its decompressed content has no {NO_TRACE}",
        ),
        (
            "log.json.gz",
            gzip.compress(b"a log, and no trace\n" * 300),
            f"its decompressed content has no {NO_TRACE}",
        ),
        (
            "map.json.gz",
            gzip.compress(b'{"mappings": "AAAA"}'),
            f"its decompressed content has no {NO_TRACE}",
        ),
        (
            "magic.json.gz",
            b"\x1f\x8b" + bytes(range(255, 0, -1)) * 9,
            "starts like a gzip file, but nothing in it can",
        ),
        (
            "cut.json.gz",
            gzip.compress(b'{"traceEvents": [' + b" " * 4096)[:12],
            "nothing in it can be decompressed",
        ),
        ("zip.json.gz", b"PK\x03\x04 a zip file", f"it has no {NO_TRACE}"),
    ],
    # A gzip file holds its time: an id made of it would differ in every process that runs tests.
    ids=lambda value: value if isinstance(value, str) and ".json" in value else "",
)
def test_a_file_that_is_no_trace_is_called_what_it_is_in_one_line(
    tmp_path: Path, name: str, content: bytes, message: str
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    for read in (
        lambda: read_trace(path),
        lambda: analyze_traces([path]),
        lambda: analyze_traces([tmp_path]),
    ):
        with pytest.raises(DpscopeError, match=message) as caught:
            read()
        assert str(path) in str(caught.value)
        assert "\n" not in str(caught.value)
        assert ("is empty" in str(caught.value)) == (not content.strip())


def test_gzip_damage(tmp_path: Path) -> None:
    path = write_trace(GENERATED.trace, tmp_path / "0_0.pt.trace.json.gz")
    sound = path.read_bytes()
    path.write_bytes(sound[: len(sound) * 2 // 3])
    cut = read_trace(path)
    assert {"trace_cut_short"} <= codes(cut)
    assert len(cut.events)
    path.write_bytes(sound[:-8])  # every event, without the checksum at the end
    assert [cut.cut_short, read_trace(path).cut_short] == [True, True]
    path.write_bytes(sound + b"something else")
    trailing = read_trace(path)
    assert not trailing.cut_short
    assert codes(trailing) == {"trace_cut_short"}
    text = trace_text(GENERATED.trace).encode()
    # two members are one text
    path.write_bytes(gzip.compress(text[:5000]) + gzip.compress(text[5000:]))
    members = read_trace(path)
    assert not members.findings
    assert len(members.events) == len(trailing.events)


@pytest.mark.long
def test_a_file_of_too_many_events_is_refused_before_it_is_read(tmp_path: Path) -> None:
    """Few bytes of gzip hold them; the second file must not be read beyond the first chunk that
    exceeds the limit.
    """
    event = (
        b'{"ph": "X", "cat": "cpu_op", "name": "aten::add", "pid": 1, "tid": 1, "ts": 1, "dur": 1}'
    )
    within, beyond = tmp_path / "within.json.gz", tmp_path / "beyond.json.gz"
    within.write_bytes(gzip.compress(b'{"traceEvents": [' + b",".join([event] * 10_000) + b"]}"))
    beyond.write_bytes(gzip.compress(b'{"traceEvents": [' + b",".join([event] * 50_000) + b"]}"))
    assert len(read_trace(within, ReadLimits(max_events=10_000)).events) == 10_000
    with pytest.raises(
        DpscopeError, match=r"beyond.json.gz holds more than 10,000 events.*raise --max-events"
    ):
        read_trace(beyond, ReadLimits(max_events=10_000))
    assert len(read_trace(beyond).events) == 50_000
    others = b'{"ph": "i", "name": "mark", "pid": 1, "tid": 1, "ts": 1}'
    beyond.write_bytes(gzip.compress(b'{"traceEvents": [' + b",".join([others] * 10_001) + b"]}"))
    with pytest.raises(DpscopeError, match="holds more than 10,000 events"):
        read_trace(beyond, ReadLimits(max_events=10_000))


# As the programs write them: horovod/common/timeline.cc, torch/autograd/profiler_util.py
# (export_chrome_trace), composer/profiler/json_trace_handler.py.
HOROVOD = [
    {
        "name": "process_name",
        "ph": "M",
        "pid": 1,
        "args": {"name": "DistributedOptimizer_Allreduce/conv1"},
    },
    *({"ph": "B", "name": "NEGOTIATE_ALLREDUCE", "ts": 10 * index, "pid": 1} for index in range(3)),
    *({"ph": "X", "name": str(index), "ts": index, "pid": 1, "dur": 0} for index in range(2)),
    *({"ph": "B", "name": "NCCL_ALLREDUCE", "ts": 5 + 10 * index, "pid": 1} for index in range(3)),
    {"ph": "E", "ts": 40, "pid": 1},
]
LEGACY = [
    {"name": name, "ph": "X", "ts": 1.5, "dur": 2.5, "tid": 1, "pid": process, "args": {}}
    for name, process in (
        ("aten::add", "CPU functions"),
        ("MyFunction", "CPU functions"),
        ("add", "CUDA functions"),
    )
]
COMPOSER = [
    {"name": "batch", "cat": "composer/trainer", "ph": "B", "ts": 1, "pid": 0, "tid": 1},
    {"name": "forward", "cat": "composer/trainer", "ph": "B", "ts": 2, "pid": 0, "tid": 1},
    {"name": "forward", "cat": "composer/trainer", "ph": "E", "ts": 5, "pid": 0, "tid": 1},
]
OTHER = [
    {"name": "frame", "cat": "devtools.timeline", "ph": "X", "ts": 1, "dur": 4, "pid": 0, "tid": 1}
] * 5


@pytest.mark.parametrize(
    ("events", "count"),
    [
        (HOROVOD, "8 events"),
        (LEGACY, "3 events"),
        (COMPOSER, "2 events"),
        (OTHER, "5 events"),
        (OTHER[:1], "1 event "),
    ],
)
def test_files_of_other_programs_are_refused(
    tmp_path: Path, events: list[Event], count: str
) -> None:
    path = tmp_path / "timeline.json"
    for content in ({"traceEvents": events}, events):
        path.write_text(json.dumps(content))
        with pytest.raises(
            DpscopeError,
            match=rf"timeline.json is a trace of another program, .* not by torch\.profiler: none of its {count}",
        ):
            read_trace(path)
    # among traces they are left out
    write(tmp_path, [step(1, 0, 100), operator("aten::mm", 10, 50)], world_size=1)
    (finding,) = [one for one in analyze_traces([tmp_path]).findings if one.code == "file_not_read"]
    assert "is a trace of another program" in finding.message


def test_chunks_of_a_large_file_join_without_loss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = events_of(read_trace(write_trace(GENERATED.trace, tmp_path / "whole.json")))
    monkeypatch.setattr("dpscope.analysis.traces.reading.chunks.CHUNK_BYTES", 1500)
    monkeypatch.setattr("dpscope.analysis.traces.reading.chunks.BLOCK_BYTES", 700)
    for layout in LAYOUTS:
        trace = read_trace(write_trace(GENERATED.trace, tmp_path / "small.json", layout))
        assert (events_of(trace), trace.rank, trace.findings) == (whole, 0, ())


def test_damaged_shapes_cost_one_size_and_are_reported(tmp_path: Path) -> None:
    """The first collective's element type is no UTF-8: one of the 15 has no size."""
    path = tmp_path / "0_0.pt.trace.json"
    text = trace_text(ddp_trace(0, 2, DdpOptions(metadata="ops")).trace).encode()
    path.write_bytes(text.replace(b'"Input type": ["float"]', b'"Input type": ["\xfffloat"]', 1))
    trace = read_trace(path)
    assert codes(trace) == {"events_damaged"}
    sizes = collectives(attribute(trace))["bytes"]
    assert (len(sizes), int(sizes.isna().sum())) == (15, 1)


def test_a_trace_of_torch_profiler_without_its_own_work_is_still_one(tmp_path: Path) -> None:
    """What Kineto itself adds: the span of the trace, python frames, the profiler's overhead."""
    path = write(
        tmp_path,
        [event(category, "n", 1, 5) for category in ("Trace", "overhead", "python_function")],
    )
    assert not len(read_trace(path).events)
    with pytest.raises(DpscopeError, match="holds no event with a duration: trace while steps run"):
        analyze_traces([path])
