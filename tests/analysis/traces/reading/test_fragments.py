"""Files of countless fragments that are no events: the work on them is bounded, and what is not read is counted."""

from dataclasses import replace
from pathlib import Path

import pytest

from dpscope.analysis.traces.reading.chunks import DEFAULT_LIMITS
from dpscope.analysis.traces.reading.json_events import EVENTS, Event, _lenient_json
from dpscope.analysis.traces.reading.reader import read_events, read_trace

FRAGMENTS = 944_000
EVERY = 2_000
EVENT = '{"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 1, "dur": 1, "args": {"device": 0}}'
MOST_TRIED = 400_000  # the bound, and what is tried again after each 2 MiB without a readable event


def damaged(path: Path, fragment: str) -> Path:
    """A trace of some MB: an event after each 2,000 fragments, and one at the end."""
    path.write_text(
        '{"traceEvents": [' + ((fragment + ",") * EVERY + EVENT + ",") * (FRAGMENTS // EVERY) + EVENT + "]}"
    )
    return path


@pytest.mark.long
@pytest.mark.parametrize(
    "fragment", ['{"}', '{"":NaN}', '{"a":{"}', '{"]}'], ids=["no JSON", "no event", "unbalanced", "bracket"]
)
def test_the_pieces_that_are_tried_are_bounded(tmp_path: Path, fragment: str) -> None:
    tried = 0

    def one(text: bytes | bytearray) -> Event:
        nonlocal tried
        tried += 1
        return EVENTS.one(text)

    path = damaged(tmp_path / "trace.json", fragment)
    events: list[Event] = []
    reading = read_events(path, DEFAULT_LIMITS, replace(EVENTS, one=one), lambda decoded: events.extend(decoded.events))
    assert tried < MOST_TRIED
    read = [event for event in events if event.ph]
    assert reading.ended
    assert 50 <= len(read) <= FRAGMENTS // EVERY + 1
    lost = FRAGMENTS // EVERY + 1 - len(read)
    without_phase = len(events) - len(read)
    assert lost > 0
    assert reading.skipped + without_phase == pytest.approx(FRAGMENTS + lost, rel=0.01)


def test_a_few_fragments_cost_no_event(tmp_path: Path) -> None:
    own = [EVENT.replace('"ts": 1,', f'"ts": {start},') for start in range(2, 1_002)]
    path = tmp_path / "trace.json"
    path.write_text('{"traceEvents": [' + "".join(f'{at},{{"}},' for at in own) + EVENT + "]}")
    trace = read_trace(path)
    assert len(trace.events) == 1_001
    assert any("1,000 events" in one.message for one in trace.findings)


def test_one_decoder_reads_all_that_is_no_strict_json() -> None:
    assert _lenient_json() is _lenient_json()
    assert EVENTS.lenient(b'{"ph": "X", "ts": 1, "dur": NaN, "name": "a\tb"}') == Event(ph="X", ts=1, name="a\tb")
