"""One rank's events as they stand in a merged trace: on the common time axis, their ids apart from other ranks' ids."""

import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from dpscope.analysis.traces.merge.lanes import EventPlace
from dpscope.analysis.traces.merge.names import RankTracks, RawEvent, hashable
from dpscope.analysis.traces.reading.json_events import Codec, sound_us

ID_STRIDE = 10_000_000_000
"""Ids keep their digits behind the rank's position: 30000019001 is id 19001 of the rank at position 3."""

_PAIRED_ARGS = ("correlation", "External id", "external id", "wait_on_cuda_event_record_corr_id")

_FLOW = frozenset("stf")  # phases: a flow's start, step and end


def _lenient(text: bytes) -> RawEvent | None:
    """An event that is no strict JSON; what is no number becomes null."""
    try:
        value = json.loads(text.decode("utf-8", errors="replace"), strict=False, parse_constant=lambda _: None)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


_list = msgspec.json.Decoder(list[dict[str, Any]])
RAW_EVENTS: Codec[RawEvent] = Codec(
    chunk=_list.decode,
    lax_chunk=_list.decode,
    one=msgspec.json.Decoder(dict[str, Any]).decode,
    lenient=_lenient,
    is_event=lambda event: bool(event.get("ph")),
    is_timed=lambda event: event.get("ts") is not None and event.get("dur") is not None,
)
"""Events with all their fields."""


@dataclass(frozen=True)
class RankPlacement:
    """Where a rank goes: its position among the ranks; a time t of its file becomes t - `zero_us` + `place_us`."""

    position: int
    zero_us: int
    place_us: float
    moved: dict[EventPlace, int]  # events that need a further lane of their thread


class RankRewriter:
    """Rewrites the events of one rank; counts those kept and those left out."""

    def __init__(self, placement: RankPlacement, tracks: RankTracks) -> None:
        self.kept = 0
        self.left_out = 0
        self._placement = placement
        self._tracks = tracks
        self._id_base = placement.position * ID_STRIDE
        self._moved_starts = {place[:3]: lane for place, lane in placement.moved.items()}

    def rewritten(self, events: list[RawEvent]) -> Iterator[RawEvent]:
        """The sound events, changed in place; metadata go to the tracks."""
        for event in events:
            if event.get("ph") == "M":
                self._tracks.learn(event)
            elif self._rewrite(event):
                self.kept += 1
                yield event
            else:
                self.left_out += 1

    def _rewrite(self, event: RawEvent) -> bool:
        """False for an event without a phase or without sound times, or a flow without an id."""
        phase, start, duration = event.get("ph"), sound_us(event.get("ts")), None
        if start is None or not isinstance(phase, str) or not phase:
            return False
        if phase == "X":
            duration = sound_us(event.get("dur"))
            if duration is None or duration < 0:
                return False
            event["dur"] = round(duration, 3)
        if phase in _FLOW and not isinstance(event.get("id"), int | str):
            return False
        if not isinstance(event.get("name"), str):
            event["name"] = str(event.get("name", ""))
        if not isinstance(event.get("cat", ""), str):
            del event["cat"]
        self._put(event, start, duration)
        event["ts"] = round(start - self._placement.zero_us + self._placement.place_us, 3) + 0.0  # no -0.0
        if "id" in event:
            event["id"] = self._id(event["id"])
        args = event.get("args")
        if isinstance(args, dict):
            for key in _PAIRED_ARGS:
                if key in args:
                    args[key] = self._id(args[key])
        return True

    def _put(self, event: RawEvent, start: float, duration: float | None) -> None:
        """Set process and thread; a flow goes where the event went that begins with it."""
        pid, tid = hashable(event.get("pid")), hashable(event.get("tid"))
        if duration is None:
            lane = self._moved_starts.get((pid, tid, start), 0)
        else:
            lane = self._placement.moved.get((pid, tid, start, duration), 0)
        process, event["tid"] = self._tracks.thread(pid, tid, lane)
        event["pid"] = process.number
        if duration is not None:
            process.note(event.get("cat"))

    def _id(self, value: object) -> object:
        """An id of this rank alone. Perfetto pairs numbers only; one with no room behind the position is folded."""
        if type(value) is int:
            return self._id_base + value % ID_STRIDE
        return self._id_base + zlib.crc32(value.encode("utf-8", "replace")) if isinstance(value, str) else value
