"""The measurement of a script after its warm-up: what was observed, and the stages in their order.

No step belongs to two stages.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.nn.parallel import DistributedDataParallel

from dpscope.profiling.attached.interception import ProfilerWatch
from dpscope.profiling.attached.job import Place
from dpscope.profiling.attached.model_calls import ModelCalls
from dpscope.profiling.attached.settings import SETTLING_STEPS, AttachSettings
from dpscope.profiling.attached.warm_up import WarmUp
from dpscope.profiling.attached.windows import TimedWindow, TracedWindow, Window, finish_work
from dpscope.profiling.attached.wrapped_models import DetectedStrategy, WrapperLog
from dpscope.profiling.instruments.trace_recorder import StepTrace
from dpscope.profiling.records.finding import counted
from dpscope.profiling.records.run import ParameterSizes
from dpscope.profiling.store.folders import RepeatFolder


@dataclass
class Observed:
    """What was observed of a script up to its timed window, and the windows."""

    settings: AttachSettings
    folder: RepeatFolder  # of the job
    place: Place
    device: torch.device
    detected: DetectedStrategy
    wrappers: WrapperLog
    warm_up: WarmUp
    calls: ModelCalls
    profiler_watch: ProfilerWatch
    # of the models when the measurement began: a script may freeze or unfreeze parameters later
    sizes: ParameterSizes
    timed: TimedWindow
    traced: TracedWindow | None = None
    counted: TracedWindow | None = None  # with DDP's counters
    ended_early: str | None = None  # how the script ended before the stages did
    steps: int = 0  # of the whole script, where it ended early

    @property
    def is_traced(self) -> bool:
        return self.traced is not None and self.traced.complete

    @property
    def counters_apply(self) -> bool:
        """Whether DDP's counters describe all reductions of a step."""
        return len(self.detected.ddp) == 1 and self.place.world_size > 1

    def early_text(self) -> str:
        """What was measured of a script that ended early, and what is missing."""
        traced = self.settings.traced_steps if self.is_traced else "none"
        without = ", and DDP's counters are missing" if self.counters_apply else ""
        return f"{len(self.timed.calls)} of {counted(self.settings.steps, 'step')} were timed, {traced} traced{without}"

    def tracing(self, path: Path, model: DistributedDataParallel | None = None) -> TracedWindow:
        trace = StepTrace(
            self.settings.traced_steps,
            path,
            self.device,
            self.detected.traits.peer_copies,
            lambda: finish_work(self.device),
        )
        return TracedWindow(trace, self.profiler_watch, model)


def _may_trace(observed: Observed) -> bool:
    # a profiler of the script would mark its steps in the trace, even after it has ended
    return observed.settings.traced_steps > 0 and not observed.profiler_watch.seen


def _trace(observed: Observed) -> Window:
    place = observed.place
    path = observed.folder.trace_path(place.node, place.rank)
    observed.traced = observed.tracing(path)
    return observed.traced


def _trace_with_counters(observed: Observed) -> Window:
    place = observed.place
    path = observed.folder.counters_trace_path(place.node, place.rank)
    observed.counted = observed.tracing(path, observed.detected.ddp[0])
    return observed.counted


@dataclass(frozen=True)
class Stage:
    """A stage is entered when the one before it has ended, if it `applies` then."""

    name: str
    applies: Callable[[Observed], bool]
    window: Callable[[Observed], Window]


STAGES = (
    # first, so that a short script has a trace
    Stage("traced", _may_trace, _trace),
    # not kept
    Stage(
        "settling",
        lambda observed: observed.is_traced,
        lambda observed: TimedWindow(SETTLING_STEPS, observed.device),
    ),
    Stage("timed", lambda observed: True, lambda observed: observed.timed),
    Stage(
        "DDP's counters",
        lambda observed: observed.is_traced and observed.counters_apply,
        _trace_with_counters,
    ),
)
