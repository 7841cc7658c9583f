"""Idle devices, and ranks that number or time the same steps differently; expectations by hand."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpscope.analysis.output.traces_screen import ReadJob
from dpscope.analysis.runs.run_data import traced_run, traces_text
from dpscope.analysis.traces.ranks.job import Job
from dpscope.analysis.traces.ranks.step_findings import idle_findings, step_times_apart
from dpscope.analysis.traces.ranks.trace_analysis import analyze_traces
from dpscope.profiling.records.finding import Finding
from dpscope.profiling.records.run import Cell
from tests.generated_traces.generator import ddp_trace, write_trace
from tests.helpers.known import known
from tests.helpers.made_traces import (
    Event,
    analyzed_events,
    launch,
    on_device,
    operator,
    record,
    step,
    write,
)
from tests.helpers.made_verdicts import said
from tests.helpers.run_cells import windows
from tests.helpers.several_jobs import lengthened

DDP = Cell(strategy="ddp", devices=2, batch_size=8)


def test_idle_is_a_mean_over_whole_windows_of_the_device_that_is_most_idle() -> None:
    """Device 0 of rank 0: 600 and 200 us of 1,000 us, rank 1 100 us; rank 0's first window does not
    count.
    """
    steps = windows(DDP, 3, step_us=1000.0, idle_us=100.0, host_copy_us=0.0)
    idle_us = np.where(steps["rank"] == 0, np.array([1000.0, 600.0, 200.0])[steps["step"]], 100.0)
    steps = steps.assign(idle_us=idle_us, partial_window=steps["step"] == 0)
    (found,) = idle_findings(steps, "ddp-d2-b8")
    assert found.code == "device_idle"
    message = (
        "ddp-d2-b8: 1 of 2 devices idle, most of all device 0 of rank 0: 40% of a step (400.0 µs of 1.00 ms); it "
        "waits for the host or the loader"
    )
    assert found.message == message
    of_one_process = windows(Cell("dp", 2, 8), 3, step_us=1000.0, idle_us=400.0, host_copy_us=0.0)
    (other,) = idle_findings(of_one_process)
    assert other.message.endswith(
        "it waits for the host or the loader, or for another device of its process"
    )


SINGLE = Cell(strategy="single", devices=1, batch_size=8)


@pytest.mark.parametrize(
    ("unlaunched_us", "data_wait_us", "code"),
    [
        (400.0, 0.0, "launch_bound"),
        # 300 us of 1,000 in which data was there and nothing launched
        (400.0, 100.0, "launch_bound"),
        (400.0, 101.0, "device_idle"),  # the loader's share
        (299.0, 0.0, "device_idle"),
        (400.0, None, "device_idle"),  # who knows whether the loader was waited for
    ],
)
def test_a_host_that_launches_too_slowly_is_distinguished_from_a_loader(
    unlaunched_us: float, data_wait_us: float | None, code: str
) -> None:
    steps = windows(
        SINGLE, 2, step_us=1000.0, idle_us=500.0, host_copy_us=0.0, unlaunched_us=unlaunched_us
    )
    (found,) = idle_findings(steps, "single-d1-b8", data_wait_us)
    assert found.code == code
    assert ("launch-bound: for 400.0 µs" in found.message) == (
        code == "launch_bound" and data_wait_us == 0.0
    )


def gloo_on_gpu(rank: int) -> list[Event]:
    """Steps of 100 ms: 49 ms compute, then 40 ms of an all-reduce by gloo on the host, of which the
    device shows nothing.
    """
    events = []
    for number in range(4):
        at, first = number * 100e3, 2 * number + 1
        events += [
            step(number, at, 100e3),
            launch(first, at + 1),
            on_device("forward", at + 1e3, 44e3, first),
            operator("gloo:all_reduce", at + 47e3, 40e3, tid=99),
            record(
                "allreduce",
                at + 46e3,
                **{"In msg nelems": 25_000_000, "dtype": "Float", "Group size": 2, "Seq": number},
            ),
            launch(first + 1, at + 89e3),
            on_device("sgd", at + 90e3, 5e3, first + 1),
        ]
    return events


def test_idle_time_in_which_unknown_communication_may_lie_is_no_finding(tmp_path: Path) -> None:
    for rank in range(2):
        analysis = analyzed_events(tmp_path, gloo_on_gpu(rank), rank)
    assert not analysis.communication_known
    assert analysis.steps["idle_us"].iloc[-1] == pytest.approx(51e3)
    codes = {finding.code for finding in analysis.findings}
    assert "trace_incomplete" in codes
    assert not {"device_idle", "launch_bound"} & codes
    assert not any("would not shorten" in finding.message for finding in analysis.findings)
    verdict = ReadJob(analysis).verdict
    assert "not measured" in said(verdict, "cost")
    assert "communication not known" in verdict.setting
    assert said(verdict, "next").startswith("NEXT: With gloo on GPU tensors, use nccl or time")


WAIT_US = 100.0
RECORDED: dict[str, Any] = {
    "Collective name": "allreduce",
    "Process Group Name": "0",
    "Group size": 2,
}


def numbered(
    folder: Path,
    first_steps: Sequence[int],
    sequence: bool = True,
    kinds: Sequence[str] = ("AllReduce", "AllReduce"),
) -> Job:
    """Two ranks of three steps of 1,000 us with an all-reduce each: rank 1 is 100 us late in each,
    both end at 700.
    """
    for rank, (first, kind) in enumerate(zip(first_steps, kinds, strict=True)):
        events = []
        for index in range(3):
            begin, start = 1_000.0 * index, 500.0 + WAIT_US * rank
            recorded = (
                RECORDED
                | ({"Seq": 40 + index} if sequence else {})
                | {"Collective name": kind.lower()}
            )
            events += [step(first + index, begin, 1_000), launch(index + 1, begin + 5)]
            events.append(
                on_device(
                    f"ncclDevKernel_{kind}_Sum_f32",
                    begin + start,
                    700 - start,
                    index + 1,
                    **recorded,
                )
            )
        write(folder, events, rank, 2, host_name="node")
    return analyze_traces([folder])


def finding(analysis: Job, code: str) -> Finding | None:
    return next((one for one in analysis.findings if one.code == code), None)


@pytest.mark.parametrize(
    ("first_steps", "sequence"), [((5, 105), True), ((5, 5), True), ((5, 5), False)]
)
def test_step_numbers_are_labels_of_a_rank(
    tmp_path: Path, first_steps: tuple[int, int], sequence: bool
) -> None:
    analysis = numbered(tmp_path, first_steps, sequence)
    assert analysis.collectives.groupby("rank")["wait_us"].sum().tolist() == [3 * WAIT_US, 0]
    (caused,) = analysis.waits.to_dict("records")
    assert caused["wait_per_step_us"] == WAIT_US
    assert caused["steps"] == 2  # the first one is partial
    run = traced_run(analysis, [tmp_path])
    assert "2 whole steps of each" in traces_text(run)
    assert "means over 2 traced steps" in known(ReadJob(analysis).verdict.fact("cost")).basis


@pytest.mark.parametrize(("factor", "errors"), [(1000.0, ["step_times_apart"]), (20.0, [])])
def test_times_in_nanoseconds_are_an_error_and_no_wait_and_a_slow_rank_is_neither(
    tmp_path: Path, factor: float, errors: list[str]
) -> None:
    write_trace(ddp_trace(0, 2).trace, tmp_path / "rank0.json")
    write_trace(lengthened(ddp_trace(1, 2).trace, factor), tmp_path / "rank1.json")
    analysis = analyze_traces(tmp_path)
    assert [one.code for one in analysis.findings if one.severity == "error"] == errors
    assert analysis.collectives["wait_us"].notna().any() == (not errors)


def test_a_rank_without_a_time_is_not_far_apart() -> None:
    steps = windows(DDP, 1, step_us=1000.0)
    untimed = np.where(steps["rank"] == 0, np.nan, 1000.0)
    assert step_times_apart(steps.assign(step_us=untimed)) == []
    assert step_times_apart(steps.assign(step_us=np.full(len(steps), np.nan))) == []
    (apart,) = step_times_apart(steps.assign(step_us=np.where(steps["rank"] == 0, 1.0, 1000.0)))
    assert "cost" not in apart.message


def test_a_device_that_is_mostly_busy_is_not_reported_nor_a_cpu() -> None:
    for idle_us, device, reported in (
        (0.0, 0, False),
        (299.0, 0, False),
        (900.0, 0, True),
        (900.0, None, False),
    ):
        steps = windows(DDP, 2, step_us=1000.0, idle_us=idle_us, host_copy_us=0.0).assign(
            device=device
        )
        assert bool(list(idle_findings(steps))) is reported
    # The start of a single traced step is not recorded; there is no other step to judge by.
    steps = windows(DDP, 1, step_us=1000.0, idle_us=740.0, host_copy_us=0.0).assign(
        partial_window=True
    )
    (found,) = idle_findings(steps)
    assert found.message.startswith(
        "2 of 2 devices idle, most of all device 0 of rank 0: 74% of a step"
    )
