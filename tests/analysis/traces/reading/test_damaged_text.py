"""Text that is damaged, or unusual and sound: nothing is lost in silence, nothing takes for ever,
nothing raises.

Five steps of 1000 us with one kernel of 100 us each, on one line or an event a line as Kineto has
it.
"""

import gzip
import json
import time
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from dpscope.analysis.traces.ranks.job import Job
from dpscope.analysis.traces.ranks.trace_analysis import analyze_traces
from dpscope.analysis.traces.reading import chunks
from dpscope.analysis.traces.reading.reader import read_trace
from tests.helpers.known import codes
from tests.helpers.made_traces import Event, launch, on_device, step


def events(steps: int = 5, **args: object) -> list[Event]:
    """Per step its range, a launch and a kernel; `args` are put into every event."""
    found = []
    for number in range(steps):
        start = 1000.0 * number + 1000
        found += [step(number, start, 900), launch(number + 1, start + 10)]
        found.append(on_device("gemm", start + 20, 100, number + 1))
    return [{**one, "args": one["args"] | args} for one in found]


def one_line(found: list[Event]) -> str:
    return json.dumps({"traceEvents": found})


def kineto(found: list[Event]) -> str:
    lines = ",\n  ".join("{\n    " + json.dumps(one)[1:-1] + "\n  }" for one in found)
    return '{\n  "traceEvents": [\n  ' + lines + '\n  ],\n  "traceName": "x"\n}'


def analyzed(path: Path, text: str | bytes) -> Job:
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return analyze_traces([path])


def compute(analysis: Job) -> list[float]:
    values: list[float] = analysis.steps["compute_us"].to_list()
    return values


def damage(analysis: Job) -> set[str]:
    return codes(analysis) - {"device_idle", "parallelism"}


@pytest.mark.parametrize("frames", [2, 40, 3000])
@pytest.mark.parametrize("steps", [5, 400])
def test_arguments_may_hold_objects_wherever_a_chunk_is_cut(
    tmp_path: Path, frames: int, steps: int
) -> None:
    found = events(
        steps, frames=[{"file": "a", "line": line} for line in range(frames if steps == 5 else 4)]
    )
    analysis = analyzed(tmp_path / "0_0.pt.trace.json", one_line(found))
    assert compute(analysis) == [100.0] * steps
    assert damage(analysis) == set()


def frames(count: int, frame: str) -> str:
    return ", ".join([frame] * count)


BROKEN = {
    # Where a try costs all the text behind it, and each piece is one.
    "a frame without its end": '{"x": ['
    + frames(45_000, '{"file": "a", "line": 1}')
    + ', {"file": ], "y": 1}',
    "a brace too many": '{"x": [' + frames(45_000, '{"file": "a", "line": 1}') + ', {"y": {"z": 1}',
    "frames in frames": frames(45_000, '{"a": [{"b": 1}') + "]}" * 45_000,
    "nothing but beginnings": frames(100_000, '{"a": [{"b": 1}'),
    "ends of no array": frames(45_000, '{"a": nul}], "b": [}'),
    "stray brackets": '{"a": 1}' + '], {"a": nul}' * 45_000,
    "blanks": ('{"a": nul}' + " " * 3000) * 350,
    "a string without end": '{"a": "' + "b\\" * 500_000,
    "nested": '{"a": ' + "[" * 1_000_000,
}


@pytest.mark.long
@pytest.mark.parametrize("name", BROKEN)
def test_repair_is_linear_whatever_is_broken(tmp_path: Path, name: str) -> None:
    """1 to 2 MB on one line amid the events: it costs seconds at most, and the events around it are
    there.
    """
    before, after = json.dumps(events(60))[1:-1], json.dumps(events(120)[180:])[1:-1]
    path = tmp_path / "0_0.pt.trace.json"
    path.write_text('{"traceEvents": [' + ", ".join([before, BROKEN[name], after]) + "]}")
    begun = time.process_time()
    trace = read_trace(path)
    assert time.process_time() - begun < 5
    assert 300 <= len(trace.events) <= 360
    assert codes(trace) & {"events_damaged", "trace_cut_short"}


@pytest.mark.parametrize("layout", [one_line, kineto])
@pytest.mark.parametrize(
    "fractions",
    [
        # Of the file's first record, and of the step, launch and kernel that begin before it.
        (".650", ".650", ".650", ".650"),
        (".650", ".250", ".125", ".375"),
        (".001", ".999", ".998", ".997"),
        (".5", ".0", ".000", ".9990"),
        (".25", "", ".75", ""),
    ],
)
def test_times_before_the_first_record_are_exact(
    tmp_path: Path, layout: Any, fractions: tuple[str, ...]
) -> None:
    """The first record stands at 1,694,128,201,226,418 us and a fraction, the others 13,917 us and
    less before.
    """
    base = 1_694_128_201_226_418
    whole = (base, base - 13_917, base - 13_907, base - 13_000)
    first, *before = [events()[0], *events()[:3]]
    found = [{**first, "cat": "cpu_op", "name": "aten::add"}, *before]
    for index, event in enumerate(found):
        event["ts"] = f"@{index}"
    text = layout(found)
    for index, (number, fraction) in enumerate(zip(whole, fractions, strict=True)):
        text = text.replace(f'"@{index}"', f"{number}{fraction}")
    path = tmp_path / "0_0.pt.trace.json"
    path.write_text(text)
    table = read_trace(path).events
    exact = [
        number - whole[1] + Fraction("0" + part)
        for number, part in zip(whole, fractions, strict=True)
    ]
    assert table.start_us.tolist() == pytest.approx([float(one) for one in exact], abs=1e-9)


ABSURD = {
    "Seq": 2**64 - 1,
    "Group size": 2**64 - 1,
    "In msg nelems": 2**63 - 1,
    "Out msg nelems": 2**64 - 1,
    "device": 2**70,
    "Process Group Name": "\ud800",
    "Input Dims": json.loads("[" * 400 + "]" * 400),
    "correlation": 2**70,
}


@pytest.mark.parametrize("name", ABSURD)
def test_one_absurd_argument_leaves_the_rest_as_it_is(tmp_path: Path, name: str) -> None:
    found = events()
    for event in found[-3:]:
        event["args"] = event["args"] | {
            "Collective name": "allreduce",
            "dtype": "Double",
            name: ABSURD[name],
        }
    found[-1]["name"] = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"
    analysis = analyzed(tmp_path / "0_0.pt.trace.json", one_line(found))
    assert compute(analysis)[:4] == [100.0] * 4
    assert analysis.steps["device"].unique().tolist() == [0]
    assert analysis.collectives["bytes"].isna().all()


@pytest.mark.parametrize("first", [65_534, 65_535, 65_536, 65_537])
def test_gzip_members_may_end_anywhere_in_a_block(tmp_path: Path, first: int) -> None:
    """A first member of this many bytes, padded by its header's file name."""
    text = one_line(events(300)).encode()
    body = gzip.compress(text[:20_000], 9)
    member = body[:3] + b"\x08" + body[4:10] + b"n" * (first - len(body) - 1) + b"\0" + body[10:]
    assert len(member) == first
    analysis = analyzed(tmp_path / "0_0.pt.trace.json.gz", member + gzip.compress(text[20_000:]))
    assert compute(analysis) == [100.0] * 300
    assert damage(analysis) == set()


def test_a_byte_order_mark_is_no_damage(tmp_path: Path) -> None:
    for whole in (
        {"distributedInfo": {"rank": 3, "world_size": 4}, "traceEvents": events()},
        events(),
    ):
        analysis = analyzed(tmp_path / "trace.json", b"\xef\xbb\xbf" + json.dumps(whole).encode())
        assert compute(analysis) == [100.0] * 5
        assert isinstance(whole, list) or analysis.summaries[0].rank == 3


@pytest.mark.parametrize("layout", [one_line, kineto])
@pytest.mark.parametrize("place", [0.1, 0.5, 0.9])
def test_a_brace_too_many_costs_one_event(tmp_path: Path, layout: Any, place: float) -> None:
    """The event's own text is lost, and nothing behind it."""
    text = layout(events())
    brace = text.index('{"', int(place * len(text)))  # where arguments begin
    analysis = analyzed(tmp_path / "0_0.pt.trace.json", text[:brace] + "{" + text[brace:])
    assert "1 event of" in " ".join(
        one.message for one in analysis.findings if one.code == "events_damaged"
    )
    assert len(read_trace(tmp_path / "0_0.pt.trace.json").events) == 14


@pytest.mark.parametrize("shift", ["integers first", "metadata first", "one absurd"])
def test_times_since_1970_are_shortened_all_or_none(tmp_path: Path, shift: str) -> None:
    """1,694,128,201,226,418.25 us and on: a step is 1000 us, whatever stands before the first
    fraction.
    """
    found = events(400)
    for index, event in enumerate(found):
        whole = shift == "integers first" and index < 600
        event["ts"] = 1_694_128_201_226_418 + int(event["ts"]) + (0 if whole else 0.25)
    if shift == "metadata first":
        label = {"ph": "M", "name": "process_labels", "args": {"labels": "x" * 900}}
        found = [label] * 150 + found
    text = one_line(found)
    if shift == "one absurd":
        text = text.replace('"ts": 16941282', '"ts": 99999999999916941282', 1)
    analysis = analyzed(tmp_path / "0_0.pt.trace.json", text)
    lost = {"events_damaged"} if shift == "one absurd" else set()
    assert damage(analysis) - {"events_of_no_step"} == lost
    steps = analysis.steps.iloc[2:]
    assert steps["step_us"].to_list() == pytest.approx([1000.0] * len(steps), abs=0.5)
    assert steps["compute_us"].to_list() == pytest.approx([100.0] * len(steps), abs=0.5)


@pytest.mark.parametrize(("step", "thread"), [("9" * 20, 10), ("9" * 5000, 10), ("3", "\ud800")])
def test_absurd_steps_and_threads(tmp_path: Path, step: str, thread: int | str) -> None:
    found = events()
    for event in found[9:12]:
        event["name"] = event["name"].replace("#3", f"#{step}")
        event["tid"] = thread if event["cat"] == "user_annotation" else event["tid"]
    assert compute(analyzed(tmp_path / "0_0.pt.trace.json", one_line(found)))[:3] == [100.0] * 3


@pytest.mark.parametrize(
    ("field", "value"), [("dur", "Infinity"), ("dur", 1e300), ("ts", 2.0**70), ("dur", "-Infinity")]
)
def test_a_time_without_end_is_none(tmp_path: Path, field: str, value: object) -> None:
    found = events()
    found[5][field] = value  # the second step's kernel
    analysis = analyzed(tmp_path / "0_0.pt.trace.json", one_line(found))
    # a step that launched nothing has no window
    assert compute(analysis) == [100.0, 100.0, 100.0, 100.0]
    assert damage(analysis) == {"events_damaged", "steps_not_timed"}


def test_bytes_behind_padding_are_reported(tmp_path: Path) -> None:
    content = gzip.compress(one_line(events()).encode()) + bytes(200_000)
    assert damage(analyzed(tmp_path / "0_0.pt.trace.json.gz", content)) == set()
    assert damage(analyzed(tmp_path / "0_0.pt.trace.json.gz", content + b"more")) == {
        "trace_cut_short"
    }


def test_nothing_is_read_behind_an_event_without_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 200 kB where 50 kB are allowed: what stands before it is there, and the rest is reported."""
    for name, size in (("EVENT_BYTES", 50_000), ("CHUNK_BYTES", 10_000), ("BLOCK_BYTES", 5_000)):
        monkeypatch.setattr(chunks, name, size)
    found = events(300)
    found[-1]["args"]["x"] = "y" * 200_000
    analysis = analyzed(tmp_path / "0_0.pt.trace.json", one_line([*found, *events()]))
    assert 250 < len(compute(analysis)) <= 300
    assert damage(analysis) >= {"events_damaged", "trace_cut_short"}
