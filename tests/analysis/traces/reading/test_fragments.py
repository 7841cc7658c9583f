"""Files of countless fragments that are no events: the work on them is linear, and what is not read
is counted.
"""

import time
from pathlib import Path

import pytest

from dpscope.analysis.traces.reading.chunks import DEFAULT_LIMITS
from dpscope.analysis.traces.reading.json_events import EVENTS, Event
from dpscope.analysis.traces.reading.reader import read_events

FRAGMENTS = 120_000
EVERY = 2_000
EVENT = '{"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 1, "dur": 1, "args": {"device": 0}}'


def damaged(path: Path, fragment: str) -> Path:
    """A trace of a MB: an event after each 2,000 fragments, and one at the end."""
    path.write_text(
        '{"traceEvents": ['
        + ((fragment + ",") * EVERY + EVENT + ",") * (FRAGMENTS // EVERY)
        + EVENT
        + "]}"
    )
    return path


@pytest.mark.long
@pytest.mark.parametrize(
    ("fragment", "is_json"),
    [('{"}', False), ('{"":NaN}', True), ('{"a":{"}', False), ('{"]}', False)],
)
def test_all_events_between_fragments_are_read_in_linear_time(
    tmp_path: Path, fragment: str, is_json: bool
) -> None:
    events: list[Event] = []
    begun = time.process_time()
    path = damaged(tmp_path / "trace.json", fragment)
    reading = read_events(
        path, DEFAULT_LIMITS, EVENTS, lambda decoded: events.extend(decoded.events)
    )
    assert time.process_time() - begun < 10
    assert reading.ended
    assert sum(bool(event.ph) for event in events) == FRAGMENTS // EVERY + 1
    without_phase = sum(not event.ph for event in events)
    assert reading.skipped + without_phase == FRAGMENTS
    assert is_json or not without_phase
