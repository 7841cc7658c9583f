"""A replayed step as a Chrome trace, beside the measured one: what Perfetto draws."""

import gzip
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from dpscope.analysis.what_if.answers.output import RunAnswer
from dpscope.analysis.what_if.replay.base import measured_conditions
from dpscope.analysis.what_if.replay.replay import AS_IT_WAS, CollectiveSpan, Prepared, Replayed, replay
from dpscope.analysis.what_if.scenarios.inputs import inputs_of
from dpscope.profiling.records.strategies import traits_of
from dpscope.profiling.store.errors import DpscopeError
from dpscope.profiling.store.files import write_bytes
from dpscope.profiling.store.ownership import check_overwritable, is_own_trace

_MEASURED, _PREDICTED = 1, 2
_COMPUTE, _COLLECTIVES = 1, 2


def check_trace_name(path: Path) -> None:
    """Raise DpscopeError for a name that Perfetto does not read, a folder that is not there and a file that is not dpscope's."""
    if not path.name.endswith((".json", ".json.gz")):
        raise DpscopeError(f"{path} must end in .json or .json.gz, which Perfetto reads")
    if not path.parent.is_dir():
        raise DpscopeError(f"{path.parent} does not exist; make it first")
    check_overwritable(path, is_own_trace)


def write_replayed(said: RunAnswer, path: Path) -> None:
    """Two processes: the measured step and the first scenario's, each with compute and collectives; *.json or *.json.gz.

    Raises DpscopeError for a scenario that has no replay.
    """
    base, (words, scenario, prediction) = said.question.base, said.predictions[0]
    profile = base.profiles[0]
    inputs = inputs_of(base, profile, scenario, said.question.costs)
    if isinstance(inputs, str) or prediction.step_us is None or traits_of(scenario.strategy or "").peer_copies:
        why = inputs if isinstance(inputs, str) else prediction.reason or "DataParallel is told by its formula"
        raise DpscopeError(f"no replay to write: {why}")
    measured = replay(base.prepared(profile, AS_IT_WAS), measured_conditions(profile), with_spans=True)
    predicted = replay(base.prepared(profile, inputs.compute), inputs.conditions, with_spans=True)
    label = ", ".join(f"{name.replace('_', ' ')} {word}" for name, word in words.items()) or "as measured"
    events = [
        *_events(_MEASURED, f"measured: {base.name}", measured, base.prepared(profile, AS_IT_WAS)),
        *_events(_PREDICTED, f"predicted: {label}", predicted, base.prepared(profile, inputs.compute)),
    ]
    trace = {"schemaVersion": 1, "displayTimeUnit": "ms", "traceEvents": events, "dpscope": {"whatif": label}}
    text = json.dumps(trace, allow_nan=False, indent=2).encode()
    check_overwritable(path, is_own_trace)
    write_bytes(path, gzip.compress(text) if path.suffix == ".gz" else text)


def _events(process: int, name: str, step: Replayed, prepared: Prepared) -> Iterator[dict[str, object]]:
    """Names, compute up to the last gradient and after the last wait, every collective; microseconds from the step's start.

    Collectives in flight together are on tracks of their own: spans of one track may not overlap.
    """
    tracks = _tracks(step.collectives)
    beside = {track: f"collectives {track - _COLLECTIVES + 1}" for track in sorted({*tracks} - {_COLLECTIVES})}
    yield {"ph": "M", "pid": process, "name": "process_name", "args": {"name": name}}
    for thread, label in {_COMPUTE: "compute", _COLLECTIVES: "collectives", **beside}.items():
        yield {"ph": "M", "pid": process, "tid": thread, "name": "thread_name", "args": {"name": label}}
    yield _span(process, _COMPUTE, "forward and backward", 0.0, step.backward_us, {})
    last = max([step.backward_us, *(one.end_us for one in step.collectives if one.kind == "all_reduce")])
    yield _span(process, _COMPUTE, "optimizer and the rest", last, step.step_us, {"works": len(prepared.profile.works)})
    for one, track in zip(step.collectives, tracks, strict=True):
        told = {"bytes": round(one.bytes), "ready_us": one.ready_us, "waited_us": one.start_us - one.ready_us}
        yield _span(process, track, one.kind, one.start_us, one.end_us, told)


def _tracks(collectives: Sequence[CollectiveSpan]) -> list[int]:
    """For each the first track that is free when it starts."""
    free: list[float] = []
    found = [0] * len(collectives)
    for index in sorted(range(len(collectives)), key=lambda place: collectives[place].start_us):
        one = collectives[index]
        track = next((place for place, until in enumerate(free) if until <= one.start_us), len(free))
        free[track : track + 1] = [one.end_us]
        found[index] = _COLLECTIVES + track
    return found


def _span(
    process: int, thread: int, name: str, start: float, end: float, told: Mapping[str, object]
) -> dict[str, object]:
    duration = max(0.0, end - start)
    return {"ph": "X", "pid": process, "tid": thread, "name": name, "ts": start, "dur": duration, "args": told}
