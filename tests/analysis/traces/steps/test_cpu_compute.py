"""What counts as compute on the CPU where operators enclose waits: literals by hand, and a raster of random nested ranges."""

import random
from pathlib import Path

import pytest

from dpscope.analysis.traces.ranks.trace_analysis import analyze_traces
from tests.helpers.made_traces import Event, event, operator, step, write

WORKER = 9
NODE = "autograd::engine::evaluate_function: AddmmBackward0"
WAIT = "_c10d_functional::wait_tensor"


def gloo(start: float, duration: float) -> Event:
    return event("user_annotation", "gloo:all_reduce", start, duration, tid=WORKER)


def hook(name: str, start: float, duration: float) -> Event:
    return event("user_annotation", name, start, duration)


# One step of 1000 us; compute_us, hidden_us.
CASES: dict[str, tuple[list[Event], float, float]] = {
    "a DTensor's operator encloses the wait": (
        [
            operator("_c10d_functional::all_reduce", 100, 20),
            operator("c10d::allreduce_", 105, 10),
            gloo(110, 490),
            operator("aten::sum", 150, 500),  # 650
            operator("PythonSubclass", 155, 480),
            operator(WAIT, 160, 440),  # 600
        ],
        60,  # 150-160, 600-650
        10,  # 150-160
    ),
    "an operator within a wait computes, a wait within that does not": (
        [
            gloo(100, 800),
            operator(WAIT, 200, 600),  # 800
            operator("aten::clone", 300, 200),  # 500
            operator("c10d::allreduce_", 350, 50),
        ],
        150,
        150,
    ),
    "FSDP's hook waits within an autograd node": (
        [
            gloo(100, 500),
            operator(NODE, 200, 600),  # 800
            hook("FSDP::pre_backward (0)", 210, 400),  # 610
            operator("fsdp::split_with_sizes_copy", 590, 15),  # 605
            operator("AddmmBackward0", 620, 170),
        ],
        215,  # 200-210, 590-605, 610-800
        20,  # 200-210, 590-600
    ),
    "an autograd hook blocks until its all-reduce is done": (
        [
            operator(NODE, 200, 600),  # 800
            operator("AddmmBackward0", 200, 100),
            operator("c10d::allreduce_", 320, 10),
            gloo(325, 375),  # 700
            operator("aten::div_", 400, 30),
        ],
        250,  # 200-320, 400-430, 700-800
        30,
    ),
    "an operator that runs beyond the end of what its caller started is whole": (
        [
            operator(NODE, 200, 600),
            operator("c10d::allreduce_", 300, 10),
            gloo(305, 95),
            operator("aten::div_", 390, 30),
        ],
        510,  # 200-300, 390-800
        10,  # 390-400
    ),
    "another thread computes during the wait": (
        [gloo(100, 400), operator(WAIT, 100, 400), operator("aten::mm", 150, 300, tid=2)],
        300,
        300,
    ),
    "DDP's reducer only starts the all-reduce": (
        [
            operator(NODE, 100, 100),  # 200
            operator("c10d::allreduce_", 150, 10),
            gloo(155, 500),
            operator("autograd::engine::evaluate_function: TBackward0", 210, 300),
        ],
        350,  # 100-150, 210-510; the engine's 40 us behind the call are of the hook
        300,
    ),
    "ranges of c10d that older versions name without an underscore": (
        [gloo(100, 400), operator("aten::add", 100, 500), operator("c10d_functional::wait_tensor", 150, 350)],
        150,
        50,
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_waits_are_no_compute_of_the_operators_around_them(tmp_path: Path, case: str) -> None:
    events, compute_us, hidden_us = CASES[case]
    steps = [step(1, 0, 1000), step(2, 1000, 1000), operator("aten::mm", 1500, 10)]
    write(tmp_path, [*steps, *events], backend="gloo")
    analysis = analyze_traces([tmp_path])
    first = analysis.steps.iloc[0]
    assert first["compute_us"] == pytest.approx(compute_us)
    assert first["hidden_us"] == pytest.approx(hidden_us)
    assert first["exposed_us"] == pytest.approx(first["communication_us"] - hidden_us)
    stretches = analysis.exposed[analysis.exposed["step"] == 1]
    assert (stretches["end_us"] - stretches["start_us"]).sum() == pytest.approx(first["exposed_us"])


@pytest.mark.parametrize("seed", range(20))
def test_the_innermost_range_decides(tmp_path: Path, seed: int) -> None:
    choose = random.Random(seed)
    events: list[Event] = []
    computes = [False] * 1000

    def nest(start: int, end: int, depth: int) -> None:
        while end - start > 4 and depth < 7:
            begin = choose.randrange(start, end - 2)
            stop = choose.randrange(begin + 2, end)
            waits = choose.random() < 0.4
            events.append(operator(WAIT if waits else "aten::mm", begin, stop - begin))
            computes[begin:stop] = [not waits] * (stop - begin)
            nest(begin + 1, stop, depth + 1)
            start = stop + 1

    nest(10, 990, 0)
    write(tmp_path, [step(1, 0, 1000), step(2, 1000, 10), *events, gloo(5, 985), operator("aten::mm", 1005, 1)])
    assert analyze_traces([tmp_path]).steps["compute_us"].iloc[0] == pytest.approx(sum(computes))
