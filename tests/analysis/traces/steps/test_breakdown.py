"""Steps of generated and real traces against literals worked out by hand: breakdown, exposed
stretches, empty steps, copies.
"""

import random
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest

from dpscope.analysis.traces.ranks.job import Job
from dpscope.analysis.traces.ranks.trace_analysis import analyze_traces
from dpscope.analysis.traces.reading.reader import read_trace
from dpscope.analysis.traces.steps.event_kind import Kind, event_kinds
from tests.generated_traces.generator import DdpOptions, Generation, Metadata, ddp_trace, gloo_trace
from tests.helpers.generated_checks import analyzed, check_job, check_steps
from tests.helpers.made_traces import (
    Event,
    analyzed_events,
    event,
    on_device,
    operator,
    step,
    write,
)

OPTIONS: dict[str, DdpOptions] = {
    "plain": DdpOptions(),
    **{
        f"{metadata} metadata": DdpOptions(metadata=metadata) for metadata in get_args(Metadata)[1:]
    },
    **{names: DdpOptions(kernel_names=names) for names in get_args(Generation)},
    "lag": DdpOptions(lag=True),
    "unlaunched": DdpOptions(unlaunched=True),
    "straggler": DdpOptions(straggler=1),
    "extra groups": DdpOptions(extra_groups=True),
    "extra groups, no numbers": DdpOptions(extra_groups=True, metadata="no_sequence"),
}
MATCHED = (  # what one rank does not show
    "plain", "no_sequence metadata", "none metadata", "straggler", "extra groups", "extra groups, no numbers",
)  # fmt: skip


@pytest.mark.parametrize(
    ("world_size", "options"),
    [(2, one) for one in OPTIONS.values()] + [(4, OPTIONS[name]) for name in MATCHED],
    ids=[*OPTIONS, *(f"{name}, four ranks" for name in MATCHED)],
)
def test_ddp(tmp_path: Path, world_size: int, options: DdpOptions) -> None:
    ranks = [ddp_trace(rank, world_size, options) for rank in range(world_size)]
    check_job(analyzed(tmp_path, *ranks), ranks)


@pytest.mark.parametrize("world_size", [2, 4])
def test_gloo(tmp_path: Path, world_size: int) -> None:
    ranks = [gloo_trace(rank, world_size) for rank in range(world_size)]
    check_job(analyzed(tmp_path, *ranks), ranks)


def test_operators_that_communicate_without_kernels_never_read_as_no_communication(
    tmp_path: Path,
) -> None:
    ranks = [ddp_trace(rank, 2, DdpOptions(communication=False)) for rank in range(2)]
    analysis = analyzed(tmp_path, *ranks)
    for rank, generated in enumerate(ranks):
        check_steps(analysis.steps, rank, generated)
    assert analysis.steps["communication_us"].isna().all()
    assert "trace_incomplete" in {finding.code for finding in analysis.findings}


STEPS = [step(number, 100.0 * number, 100) for number in range(1, 5)]
TIMES = ["compute_us", "communication_us", "hidden_us", "exposed_us", "idle_us"]


def analyzed_steps(folder: Path, *events: Event, world_size: int = 1) -> Job:
    return analyzed_events(folder, [*STEPS, *events], world_size=world_size)


def empty(analysis: Job) -> list[tuple[str, str]]:
    found = [one for one in analysis.findings if one.code == "steps_not_timed"]
    path = analysis.summaries[0].source
    return [(one.severity, one.message.replace(f" of {path}", "")) for one in found]


def test_a_trace_of_empty_steps_is_an_error(tmp_path: Path) -> None:
    analysis = analyzed_steps(tmp_path, event("user_annotation", "before", 10, 20))
    assert analysis.steps[TIMES].isna().all(axis=None)
    assert empty(analysis) == [
        ("error", "no time for 4 of 4 steps (step 1, 2, 3, 4): no event in them")
    ]


COPIES: dict[Kind, tuple[str | int | None, ...]] = {
    Kind.HOST_COPY: (
        "Memcpy HtoD (Pageable -> Device)", "Memcpy DtoH (Device -> Pinned)", "CopyHostToDevice", "CopyDeviceToHost",
        "Memcpy M2D(Memory -> Device)", "Memcpy D2M(Device -> Memory)", "HtoD", 2,
    ),
    Kind.PEER_COPY: ("Memcpy PtoP (Device -> Device)", "PtoP", 10),
    Kind.DEVICE_COPY: (
        "Memcpy DtoD (Device -> Device)", "CopyDeviceToDevice", "Memcpy D2D(Device -> Device)", "Memset (Device)", "DtoD", 8,
        99, None,
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", COPIES)
def test_a_copys_name_or_argument_has_its_direction(tmp_path: Path, kind: Kind) -> None:
    """Tracers on CUPTI call every copy "Memcpy" and state the kind as an argument, by name or by
    CUPTI's number (10: PtoP).
    """
    events = []
    for at, one in enumerate(COPIES[kind]):
        name = one if isinstance(one, str) and len(one) > 4 else "Memcpy"
        category = "gpu_memset" if "set" in name else "gpu_memcpy"
        args: dict[str, Any] = {"copy kind": one} if name == "Memcpy" and one is not None else {}
        events.append(on_device(name, 10.0 * at, 5.0, category=category, **args))
    table = read_trace(write(tmp_path, events)).events
    assert set(event_kinds(table, np.full(len(table), -1)).tolist()) == {kind}


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
        [
            gloo(100, 400),
            operator("aten::add", 100, 500),
            operator("c10d_functional::wait_tensor", 150, 350),
        ],
        150,
        50,
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_waits_are_no_compute_of_the_operators_around_them(tmp_path: Path, case: str) -> None:
    events, compute_us, hidden_us = CASES[case]
    steps = [step(1, 0, 1000), step(2, 1000, 1000), operator("aten::mm", 1500, 10)]
    analysis = analyzed_events(tmp_path, [*steps, *events], backend="gloo")
    first = analysis.steps.iloc[0]
    assert first["compute_us"] == pytest.approx(compute_us)
    assert first["hidden_us"] == pytest.approx(hidden_us)
    assert first["exposed_us"] == pytest.approx(first["communication_us"] - hidden_us)
    stretches = analysis.exposed[analysis.exposed["step"] == 1]
    assert (stretches["end_us"] - stretches["start_us"]).sum() == pytest.approx(first["exposed_us"])


@pytest.mark.parametrize("seed", range(8))
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
    write(
        tmp_path,
        [step(1, 0, 1000), step(2, 1000, 10), *events, gloo(5, 985), operator("aten::mm", 1005, 1)],
    )
    assert analyze_traces([tmp_path]).steps["compute_us"].iloc[0] == pytest.approx(sum(computes))
