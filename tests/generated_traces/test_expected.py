"""What must be found in the generated traces: steps worked out by hand against the raster; how the
traces are built.
"""

import re
from itertools import pairwise
from operator import attrgetter

import pytest

from tests.generated_traces.ddp import DdpOptions, ddp_trace
from tests.generated_traces.dp import dp_trace
from tests.generated_traces.gloo import gloo_trace
from tests.generated_traces.model import ExpectedPhase, GeneratedTrace
from tests.generated_traces.parallel_jobs import RANKS, Job, parallel_trace
from tests.generated_traces.raster import (
    DEVICE_CATEGORIES,
    by_step,
    complete_events,
    launch_calls,
    span,
)
from tests.helpers.generated_checks import TIMES
from tests.helpers.paths import ROOT

# By hand from the schedules, in us: step, compute, communication, hidden, exposed, host copies, device copies, idle, clipped.
#
# DDP, rank 0, first step: compute = 194 + 100 + 8 + 100 + 100 + 60 + 20 + 60 = 642; communication = 12 + 6 (broadcasts) + 60 +
# 96 + 40 (buckets) = 214; hidden = 60 (bucket 0 in the second backward kernel) + 56 + 20 (bucket 1 in the third and fourth) =
# 136; the window runs from 6 to 810, so idle = 804 - 642 - 78 = 84; copies in it: inputs 30, targets 2, the last bucket 6 (the
# memset runs under bucket 1). With lag, the first step also copies the next one's inputs from 738 to 750.
_Times = tuple[float, float, float | None, float | None, float | None, float, float, float, float]
DDP: dict[str, tuple[DdpOptions, int, tuple[_Times, ...]]] = {
    "plain": (DdpOptions(), 0, (
        (804, 642, 214, 136, 78, 32, 6, 84, 0),
        (840, 648, 214, 136, 78, 32, 6, 114, 0),
        (846, 654, 214, 136, 78, 32, 6, 114, 0),
    )),
    "3 us early": (DdpOptions(kernel_names="rccl"), 1, ((804, 642, 217, 136, 81, 32, 6, 81, 0),)),
    "late": (DdpOptions(straggler=0), 0, ((1304, 642, 214, 136, 78, 32, 6, 584, 0),)),
    "waiting, no buffers": (DdpOptions(straggler=0, buffers=False), 1, ((1304, 642, 736, 178, 558, 32, 6, 104, 0),)),
    # an all-gather 20, an all-to-all 10, hidden
    "lag": (DdpOptions(lag=True, unlaunched=True, extra_groups=True), 0, (
        (804, 642, 244, 166, 78, 44, 2, 84, 0),
        (840, 648, 244, 166, 78, 14, 2, 114, 30),
        (846, 654, 244, 166, 78, 2, 6, 114, 30),
    )),
    "no communication": (DdpOptions(communication=False), 0, (  # the memset counts, too
        (804, 642, None, None, None, 32, 10, 162, 0),
    )),
}  # fmt: skip

# DataParallel on NCCL, device 0, first step: compute = 12 + 3 + 2 (concatenate) + 100 + 90 + 120.5 (forward) + 6 + 8 (loss) +
# 200 + 180 + 60 (backward) + 8 (concatenate) + 60 + 100 (optimizer) = 949.5; communication = 60 + 18 + 10 + 8 (broadcasts) + 4
# (outputs of device 1) + 3 (gradient to it) + 36 + 50 (reductions) = 189; host copies = 2 + 40, and 2 of the output within the
# device; the window runs from 6 to 1384, so idle = 1378 - 949.5 - 189 = 239.5. Nothing overlaps on one device.
#
# On peer copies a device sends and receives. Device 0 of four: sends 15 (inputs), 31 to each other one (parameters) and 9
# (gradients of outputs) = 117, receives outputs from 584 to 590 and 3 x (10 + 14) (gradients): 195, of which additions hide
# 2 + 2 + 3 + 3. Device 3: sends 4 + 10 + 14, receives 5 + 31 + 3.
DP: dict[tuple[str, str, int, int], tuple[_Times, ...]] = {
    ("nccl", "host", 2, 0): (
        (1378, 949.5, 189, 0, 189, 42, 2, 239.5, 0),
        (1428, 969.5, 189, 0, 189, 42, 2, 269.5, 0),
        (1418, 959.5, 189, 0, 189, 42, 2, 269.5, 0),
    ),
    ("peer_copy", "device", 4, 0): ((1378, 970.5, 195, 10, 185, 42, 2, 222.5, 0),),
    ("peer_copy", "device", 4, 3): ((1378, 749, 67, 0, 67, 0, 0, 562, 0),),
}
RANGES = {
    ("nccl", "host", 2, 0): {
        "host_to_device": 2,
        "forward": 375.5,
        "backward": 456,
        "optimizer": 160,
    },
    ("peer_copy", "device", 4, 0): {
        "host_to_device": 42,
        "forward": 335.5,
        "backward": 477,
        "optimizer": 160,
    },
    ("peer_copy", "device", 4, 3): {"forward": 315, "backward": 434},
}

# Device 0: concatenations 17, then four broadcasts 96 or copies 31 to each other device; loss 6 +
# 8, backward 440, and 3 to scatter the output's gradient to each other device; concatenation 8,
# then reductions 86 or additions 7 for each other device. It receives outputs in 4, of three
# devices in 6, and gradients in 3 x (10 + 14), of which additions overlap 10. Device 3: forward 100
# + 90 + 125, backward 3 + 200 + 150 + 76, concatenation 8 and copies 10 + 14.
PHASES: dict[tuple[str, str, int, int], dict[str, ExpectedPhase]] = {
    ("nccl", "host", 2, 0): {
        "host_to_device": ExpectedPhase(2, copied_bytes=2048),
        "scatter": ExpectedPhase(40, copied_bytes=1572864),
        "replicate": ExpectedPhase(113, collective_count=4, collective_bytes=15767200),
        "parallel_apply": ExpectedPhase(310.5),
        "gather": ExpectedPhase(6, copied_bytes=5120),
        "loss_backward": ExpectedPhase(457, copied_bytes=5120),
        "gradient_reduce": ExpectedPhase(94, collective_count=2, collective_bytes=15728640),
        "optimizer": ExpectedPhase(160),
    },
    ("peer_copy", "device", 4, 0): {
        "host_to_device": ExpectedPhase(42, copied_bytes=6295552),
        "scatter": ExpectedPhase(15, copied_bytes=4718592),
        "replicate": ExpectedPhase(110, copied_bytes=47301600),
        "parallel_apply": ExpectedPhase(310.5),
        "gather": ExpectedPhase(8, copied_bytes=5120),
        "loss_backward": ExpectedPhase(463, copied_bytes=15360),
        "gradient_reduce": ExpectedPhase(91),
        "optimizer": ExpectedPhase(160),
    },
    ("peer_copy", "device", 4, 3): {
        "scatter": ExpectedPhase(5),
        "replicate": ExpectedPhase(31),
        "parallel_apply": ExpectedPhase(315),
        "gather": ExpectedPhase(4, copied_bytes=5120),
        "loss_backward": ExpectedPhase(429),
        "gradient_reduce": ExpectedPhase(32, copied_bytes=15728640),
    },
}

# Every step of each rank: compute, communication, hidden, exposed, idle of the first step, which
# begins with its first event, and of the others. Rank 0 of the first job: kernels 100 + 100 + 10 +
# 100 + 80 + 100 + 50; all-reduces 60 + 60 + 60 and 640 to 840; 460 to 520 under a kernel.
PARALLEL: dict[Job, tuple[tuple[float, ...], ...]] = {
    "tensor_data_parallel": (
        (540, 380, 60, 320, 20, 140),
        (550, 370, 60, 310, 20, 140),
        (540, 380, 60, 320, 20, 140),
        (560, 360, 60, 300, 20, 140),
    ),
    "tensor_parallel": ((540, 240, 60, 180, 160, 280), (550, 230, 60, 170, 160, 280)),
    "fully_sharded": (*[(460, 290, 120, 170, 0, 370)] * 3, (480, 270, 120, 150, 0, 370)),
    "dlrm": ((410, 204, 140, 64, 16, 526),) * 4,
    "pipeline": ((230, 50, 0, 50, 110, 720), (140, 140, 0, 140, 10, 720)),
}


times = attrgetter(*TIMES)


@pytest.mark.parametrize("name", DDP)
def test_steps_of_ddp_by_hand(name: str) -> None:
    options, rank, literals = DDP[name]
    steps = ddp_trace(rank, 2, options).expected.steps
    assert [times(step) for step in steps.values()][: len(literals)] == list(literals)
    device = 3 if name == "3 us early" else rank
    assert list(steps) == [(device, 5), (device, 6), (device, 7)]
    ends = (1310, 2650, 3996) if options.straggler is not None else (810, 1650, 2496)
    assert [step.window_us for step in steps.values()] == [(6, ends[0]), ends[:2], ends[1:]]
    assert [step.partial_window for step in steps.values()] == [True, False, False]
    # Inputs 30, targets 2; with lag the next step's inputs are clipped, and the range is left out.
    first, last = steps[device, 5].range_us, steps[device, 7].range_us
    assert first == {"host_to_device": 32, "forward": 302, "backward": 290, "optimizer": 60}
    assert last == ({} if options.lag else {"host_to_device": 32}) | {
        "forward": 302,
        "backward": 290,
        "optimizer": 72,
    }
    counts = {"lag": 8, "waiting, no buffers": 3, "no communication": 0}
    assert {step.collective_count for step in steps.values()} == {counts.get(name, 5)}


@pytest.mark.parametrize("place", DP)
def test_steps_of_data_parallel_by_hand(place: tuple[str, str, int, int]) -> None:
    transport, inputs, devices, device = place
    steps = dp_trace(devices, transport, inputs).expected.steps  # type: ignore[arg-type]
    assert len(steps) == 3 * devices
    own = [steps[device, step] for step in (5, 6, 7)]
    assert [times(step) for step in own][: len(DP[place])] == list(DP[place])
    assert [step.window_us for step in own] == [(6, 1384), (1384, 2812), (2812, 4230)]
    assert {step.collective_count for step in own} == {6 if transport == "nccl" else 0}
    assert own[0].phases == PHASES[place]
    assert own[0].range_us == RANGES[place]


@pytest.mark.parametrize("job", PARALLEL)
def test_steps_of_other_jobs_by_hand(job: Job) -> None:
    for rank, (compute, communication, hidden, exposed, idle_first, idle) in enumerate(
        PARALLEL[job]
    ):
        for (_, step), found in parallel_trace(job, rank).expected.steps.items():
            measured = (
                compute,
                communication,
                hidden,
                exposed,
                0,
                0,
                idle_first if step == 5 else idle,
                0,
            )
            assert times(found)[1:] == measured


def test_steps_on_gloo_by_hand() -> None:
    """Compute = 200 + 75 (forward) + 5 (loss) + 170 + 130 + 50 (backward) + 100, in the last step
    140 (optimizer).

    Communication: 6 (buffers), then the buckets' ranges from 505 (rank 3: 508) to 790 without a gap
    = 285, then 50 of the metric's all-reduce, which outlasts the step by 30 except in the last,
    where all 80 count. Hidden = 130 (510 to 640) + 50 (650 to 700).
    """
    for rank, world_size, late in ((0, 2, 0), (3, 4, 3)):
        steps = gloo_trace(rank, world_size).expected.steps
        assert [times(steps[None, step]) for step in (5, 6, 7)] == [
            (1000, 730, 341 - late, 180, 161 - late, None, None, 109 + late, 30),
            (1000, 730, 341 - late, 180, 161 - late, None, None, 109 + late, 30),
            (1040, 770, 371 - late, 180, 191 - late, None, None, 79 + late, 0),
        ]
        assert [step.window_us for step in steps.values()] == [
            (0, 1000),
            (1005, 2005),
            (2010, 3050),
        ]
        assert [step.partial_window for step in steps.values()] == [False, False, True]
        assert {step.collective_count for step in steps.values()} == {5}


TRACES: dict[str, GeneratedTrace] = {
    **{f"ddp, {name}": ddp_trace(rank, 2, options) for name, (options, rank, _) in DDP.items()},
    "dp": dp_trace(2),
    "dp, peer copies": dp_trace(4, "peer_copy", "device"),
    "dp, lag": dp_trace(lag=True),
    **{job: parallel_trace(job, ranks - 1) for job, ranks in RANKS.items()},
    **{f"gloo, rank {rank}": gloo_trace(rank, size) for rank, size in ((0, 2), (3, 4))},
}


@pytest.mark.parametrize("name", TRACES)
def test_launches_come_first_threads_nest_and_streams_run_one_thing_at_a_time(name: str) -> None:
    trace = TRACES[name].trace
    calls, unlaunched = launch_calls(trace), 0
    streams: dict[tuple[int, int], list[tuple[float, float]]] = {}
    for event in complete_events(trace, *DEVICE_CATEGORIES):
        call = calls.get(event["args"]["correlation"])
        unlaunched += call is None
        assert call is None or call["ts"] <= event["ts"]
        assert event["tid"] == event["args"]["stream"]
        streams.setdefault((event["pid"], event["tid"]), []).append(span(event))
    assert unlaunched == TRACES[name].expected.unlaunched_count
    for spans in streams.values():
        assert all(end <= start for (_, end), (start, _) in pairwise(sorted(spans)))
    threads: dict[tuple[int, int], list[tuple[float, float]]] = {}
    for event in complete_events(trace, "cpu_op", "user_annotation", "cuda_runtime"):
        if "gloo:" not in event["name"]:  # these overlap: they begin when the work is created
            threads.setdefault((event["pid"], event["tid"]), []).append(span(event))
    for spans in threads.values():
        open_ends: list[float] = []
        for start, end in sorted(spans, key=lambda times: (times[0], -times[1])):
            open_ends = [other for other in open_ends if other > start]
            assert all(end <= other for other in open_ends)
            open_ends.append(end)
    if "lag" in name:  # devices are more than a step behind
        steps = by_step(trace)
        last_launch = max(calls[event["args"]["correlation"]]["ts"] for event in steps[7])
        assert last_launch < max(span(event)[1] for event in steps[5])


def test_the_generator_shares_no_code_with_dpscope() -> None:
    sources = [path.read_text() for path in (ROOT / "tests" / "generated_traces").glob("*.py")]
    assert len(sources) > 10
    assert [
        text for text in sources if re.search(r"^ *(from|import) dpscope", text, re.MULTILINE)
    ] == []
