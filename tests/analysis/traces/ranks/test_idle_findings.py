"""Idle devices are told from 30% of a step on; expectations by hand."""

import pytest

from dpscope.analysis.traces.ranks.step_findings import idle_findings
from dpscope.analysis.traces.ranks.trace_analysis import analyze_traces
from dpscope.analysis.traces.reading.table import Table
from dpscope.profiling.records.run import Cell
from tests.helpers.paths import DATA
from tests.helpers.run_cells import windows

DDP = Cell(strategy="ddp", devices=2, batch_size=8)


def test_idle_is_a_mean_over_whole_windows_of_the_device_that_is_most_idle() -> None:
    """Device 0 of rank 0: 600 and 200 us of 1,000 us, rank 1 100 us; rank 0's first window does not count."""
    steps = windows(DDP, 3, step_us=1000.0, idle_us=100.0, host_copy_us=0.0)
    steps.loc[steps["rank"] == 0, "idle_us"] = [1000.0, 600.0, 200.0]
    steps.loc[steps["step"] == 0, "partial_window"] = True
    (found,) = idle_findings(Table.from_frame(steps), "ddp-d2-b8")
    assert found.code == "device_idle"
    said = "ddp-d2-b8: 1 of 2 devices idle 40% of a step, most of all device 0 of rank 0 (400.0 µs of 1.00 ms): host"
    assert found.message.startswith(said)


def test_host_copies_within_the_idle_time_are_named() -> None:
    single = Cell(strategy="single", devices=1, batch_size=8)
    (found,) = idle_findings(Table.from_frame(windows(single, 2, step_us=1000.0, idle_us=500.0, host_copy_us=100.0)))
    said = "device 0 of rank 0 is idle 50% of a step (500.0 µs of 1.00 ms, 100.0 µs of it copying from or to the host)"
    assert found.message.startswith(said)


@pytest.mark.parametrize(
    ("unlaunched_us", "data_wait_us", "code"),
    [
        (400.0, 0.0, "launch_bound"),
        (400.0, 100.0, "launch_bound"),  # 300 us of 1,000 in which data was there and nothing launched
        (400.0, 101.0, "device_idle"),  # the loader's share
        (299.0, 0.0, "device_idle"),
        (400.0, None, "device_idle"),  # who knows whether the loader was waited for
    ],
)
def test_a_host_that_launches_too_slowly_is_told_from_a_loader(
    unlaunched_us: float, data_wait_us: float | None, code: str
) -> None:
    single = Cell(strategy="single", devices=1, batch_size=8)
    steps = windows(single, 2, step_us=1000.0, idle_us=500.0, host_copy_us=0.0, unlaunched_us=unlaunched_us)
    (found,) = idle_findings(Table.from_frame(steps), "single-d1-b8", data_wait_us)
    assert found.code == code
    assert ("launch-bound, for 400.0 µs" in found.message) == (code == "launch_bound" and data_wait_us == 0.0)


@pytest.mark.parametrize("idle_us", [0.0, 299.0])
def test_a_device_that_is_mostly_busy_says_nothing(idle_us: float) -> None:
    assert not list(idle_findings(Table.from_frame(windows(DDP, 2, step_us=1000.0, idle_us=idle_us, host_copy_us=0.0))))


def test_without_a_device_there_is_no_finding() -> None:
    steps = windows(DDP, 2, step_us=1000.0, idle_us=900.0, host_copy_us=0.0)
    assert list(idle_findings(Table.from_frame(steps)))
    steps["device"] = None
    assert not list(idle_findings(Table.from_frame(steps)))


def test_a_real_device_idle_for_three_quarters_of_its_steps() -> None:
    """Steps 5 and 6 of the A100 trace: idle 170.8 of 219.8 and 167.4 of 225.0 ms, 338.2 / 444.8 = 76%."""
    analysis = analyze_traces([DATA / "a100x2_ddp_resnet50_rank0.json.gz"])
    (found,) = [one for one in analysis.findings if one.code == "device_idle"]
    assert found.message.startswith("device 0 of rank 0 is idle 76% of a step (169.1 ms of 222.4 ms)")


def test_a_single_traced_step_has_its_finding() -> None:
    """It has no start of its own; there is no other step to judge by."""
    steps = windows(DDP, 1, step_us=1000.0, idle_us=740.0, host_copy_us=0.0).assign(partial_window=True)
    (found,) = idle_findings(Table.from_frame(steps))
    assert found.message.startswith("2 of 2 devices idle 74% to 74% of a step")
