"""dpscope's ranges stand in a trace that dpscope records, from every thread, and cost nothing anywhere else."""

from concurrent.futures import ThreadPoolExecutor

import torch
from torch.profiler import ProfilerActivity, profile

from dpscope.profiling.instruments.named_ranges import named_range, ranges_recorded


def enter(name: str) -> None:
    with named_range(name):
        torch.ones(1)


def test_a_range_is_entered_only_while_a_trace_is_recorded() -> None:
    every_thread = torch._C._profiler._ExperimentalConfig(profile_all_threads=True)
    with profile(activities=[ProfilerActivity.CPU], experimental_config=every_thread) as profiler:
        enter("before")
        with ranges_recorded(), ThreadPoolExecutor(1) as threads:
            enter("own thread")
            threads.submit(enter, "other thread").result()
        enter("after")
    names = {event.name for event in profiler.events() or ()}
    assert names & {"before", "own thread", "other thread", "after"} == {"own thread", "other thread"}


def test_a_range_that_raises_ends_the_recording() -> None:
    try:
        with ranges_recorded():
            raise KeyError
    except KeyError:
        pass
    assert named_range("one") is named_range("another")  # the same context that does nothing
