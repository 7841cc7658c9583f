"""What to do next: the largest part of a step that can be removed, with its length. By hand."""

from dataclasses import replace
from typing import Any

import pytest

from dpscope.analysis.cells.row import CellRow
from dpscope.analysis.findings.actions import RUN_AGAIN, Next, Situation, next_fact
from dpscope.analysis.stats.samples import Interval
from dpscope.analysis.traces.ranks.lateness import LastRank, LateRank
from dpscope.analysis.traces.ranks.ledger import IDLE, TRANSFER, WAITING
from tests.helpers.known import known
from tests.helpers.made_verdicts import (
    AHEAD,
    DP,
    FASTER,
    SINGLE,
    answer,
    cell,
    comparison,
    said,
    verdict_on,
)


def following(late: LateRank | None = None, **values: Any) -> Next:
    row = cell("ddp", 4, 32, **values)
    return next_fact([row], Situation(row, late, on_device=True))


@pytest.mark.parametrize(
    ("values", "part", "advice", "length"),
    [
        ({}, TRANSFER, ": larger batch, gradient accumulation", "20.0 of 100 ms, 20%"),
        ({"idle_us": 40e3}, IDLE, "see what the host does between", "40.0 of 100 ms, 40%"),
        (
            {"idle_us": 40e3, "unlaunched_us": 30e3},
            IDLE,
            "for 30.0 ms no GPU work was queued",
            "40.0 of 100 ms, 40%",
        ),
        (
            {"idle_us": 40e3, "unlaunched_us": 4e3},
            IDLE,
            "for 36.0 ms work is queued and none runs",
            "40.0 of 100 ms, 40%",
        ),
        (
            {"step_us": 80e3, "step_without_wait_us": 52e3},
            "waiting for the loader",
            "feed the devices faster",
            "28.0 of 80.0 ms, 35%",
        ),
        (
            {"exposed_wait_us": 15e3, "exposed_transfer_us": 5e3},  # jitter
            WAITING,
            "no rank is always last",
            "15.0 of 100 ms, 15%",
        ),
    ],
)
def test_the_largest_part_that_can_be_removed_is_named_with_its_length(
    values: dict[str, Any], part: str, advice: str, length: str
) -> None:
    found = following(None, **values)
    (line,) = found.fact.lines
    assert found.part == part
    assert advice in line
    assert line.lower().startswith(f"{part} ({length}): ")
    assert known(found.saves_at_most_us) == 1e3 * float(length.split()[0])


def test_copies_of_the_model_are_a_reason_to_use_ddp_and_have_their_interval() -> None:
    """Of DataParallel; its stand-in is none, so it is a reason to measure DDP."""
    parts = {"exposed_wait_us": None, "exposed_transfer_us": None, "exposed_other_us": 20e3}
    for strategy, advice in (("dp", "use DDP: DP copies"), ("dp-host", "measure DDP (no copies)")):
        row = cell(strategy, 4, 32, **parts)
        ledger = replace(known(row.ledger), intervals={"exposed_other": Interval(18e3, 22e3)})
        row = replace(row, ledger=ledger)
        fact = next_fact([row], Situation(row, None, on_device=False)).fact
        assert advice in fact.text
        assert fact.basis == "means of the traced steps; 95% interval 18.0 to 22.0 ms"


def with_interval(part: str, low_us: float, high_us: float, **values: Any) -> CellRow:
    """A row whose ledger has the interval of a part."""
    row = cell("ddp", 4, 32, **values)
    ledger = replace(known(row.ledger), intervals={part: Interval(low_us, high_us)})
    return replace(row, ledger=ledger)


def test_a_part_whose_interval_includes_0_comes_after_those_that_are_significant() -> None:
    """20 of 100 ms transfer; idle for 10 ms."""
    advised = []
    for low_us in (0.0, 1.0):
        row = with_interval("exposed_transfer", low_us, 40e3, idle_us=10e3)
        advised.append(next_fact([row], Situation(row, None, on_device=True)))
    assert [found.part for found in advised] == [IDLE, TRANSFER]
    assert advised[1].fact.basis.endswith("; 95% interval 0.001 to 40.0 ms")
    assert advised[0].fact.basis.endswith("; no interval")
    row = with_interval("exposed_transfer", 0.0, 40e3)
    (line,) = next_fact([row], Situation(row, None, on_device=True)).fact.lines
    assert line.startswith("Exposed transfer (not significant): ")


def test_few_bytes_are_bound_by_latency_which_no_faster_link_removes() -> None:
    few, many = (following(bytes_per_step=size).fact.lines[0] for size in (2.0**20 - 1, 2.0**20))
    assert few.endswith(": larger batch or accumulation")
    assert many.endswith("fp16 gradients, faster link")


def test_a_noisy_run_is_first_measured_again() -> None:
    row = cell("ddp", 4, 32)
    noisy = Situation(row, None, on_device=True, more_repeats=10, noisy=True)
    first, second = next_fact([row], noisy).fact.lines
    assert first == "1. Close other programs and measure more repeats (--repeats 10)"
    assert second.startswith("2. Exposed transfer")


def test_parts_without_an_interval_are_not_judged() -> None:
    """20 of 100 ms transfer, in a run with too few repeats."""
    row = cell("ddp", 4, 32)
    few = Situation(row, None, on_device=True, more_repeats=5, without_interval=True)
    first, second = next_fact([row], few).fact.lines
    assert first == "1. Measure more repeats to decide (--repeats 5)"
    assert second.startswith("2. Exposed transfer (20.0 of 100 ms, 20%; not judged: no interval)")


def test_communication_that_is_unknown_was_not_ruled_out() -> None:
    """The loader takes 1 of 100 ms, then 28."""
    parts = ("exposed_wait_us", "exposed_transfer_us", "exposed_other_us", "idle_us")
    unknown = dict.fromkeys(parts)
    row = cell("ddp", 4, 32, **unknown, step_without_wait_us=99e3)
    (line,) = next_fact([row], Situation(row, None, on_device=True)).fact.lines
    assert line.startswith("Measure the cell again")
    row = cell("ddp", 4, 32, **unknown, step_without_wait_us=72e3)
    (line,) = next_fact([row], Situation(row, None, on_device=True)).fact.lines
    assert line.startswith("Waiting for the loader")


def test_a_missing_cell_is_measured_by_one_action() -> None:
    """DDP was planned; what was measured is DataParallel's stand-in."""
    parts = {"exposed_wait_us": None, "exposed_transfer_us": None, "exposed_other_us": 20e3}
    row = cell("dp-host", 4, 32, **parts)
    missing = Situation(row, None, on_device=False, incomplete=True)
    assert next_fact([row], missing).fact.lines == (RUN_AGAIN,)


def test_broadcasts_of_buffers_are_switched_off_by_the_option_or_the_argument() -> None:
    """Of 20 ms exposed 5 ms wait, 6 ms are transfers and 9 ms DDP's broadcasts."""
    row = cell("ddp", 4, 32, exposed_wait_us=5e3, exposed_transfer_us=6e3, exposed_other_us=9e3)
    found = verdict_on(row)
    assert "(--broadcast-buffers off)" in said(found, "next")
    assert "9.0 other (broadcast)" in said(found, "cost")  # as in the table of a step's parts
    assert (found.part, found.saves_at_most_us) == ("broadcasts of buffers", 9e3)
    of_script = replace(
        comparison(SINGLE, row, speedups={"ddp-d4-b32": FASTER}), knows_options=False
    )
    assert "broadcast_buffers=False" in said(answer(of_script, "cuda"), "next")


def test_a_late_rank_is_named_and_whether_it_is_idle_itself() -> None:
    """Waiting of 5 ms and broadcasts of 9 ms are both for rank 2, if it is shown: 14 ms over 4
    ranks, 18.7 over the 3 that wait.

    14 ms of transfer are thus not nearly as much (80%). Idle time of 30 ms is more than the 17.1 ms
    that 7 ranks wait for one.
    """
    last = LastRank(2, ranks=4, steps=40, of_steps=40, lateness_us=14e3 * 4 / 3)
    late = LateRank(last, 14e3, 1.0, lateness_us=14e3 * 4 / 3, exposed_us=30e3)
    found = following(late, exposed_wait_us=5e3, exposed_transfer_us=14e3, exposed_other_us=9e3)
    assert found.fact.lines == (
        "Each other rank's wait (18.7 of 100 ms, 19%): find out why rank 2 is late; a faster link does not help",
    )
    last = LastRank(7, ranks=8, steps=1, of_steps=1, lateness_us=15e3 * 8 / 7)
    late = LateRank(
        last, 15e3, 0.8, lateness_us=15e3 * 8 / 7, exposed_us=20e3, idle_us=50e3, unlaunched_us=40e3
    )
    first, second = following(late, exposed_wait_us=15e3, exposed_transfer_us=5e3).fact.lines
    assert "why rank 7 is late" in first
    assert "its own GPU had no queued work for 40.0 ms of a step" in first
    assert second == "2. Trace more steps to see whether rank 7 is always late"
    idle = {"idle_us": 30e3, "unlaunched_us": 25e3}
    host, _ = following(late, exposed_wait_us=15e3, exposed_transfer_us=5e3, **idle).fact.lines
    assert "for 25.0 ms no GPU work was queued (rank 7: 40.0 ms)" in host


def test_a_larger_batch_that_was_measured_to_pay_is_advised() -> None:
    small = cell("ddp", 4, 32, samples_per_s=1000, samples_per_s_low=990, samples_per_s_high=1010)
    large = cell("ddp", 4, 64, samples_per_s=1500, samples_per_s_low=1480, samples_per_s_high=1520)
    found = said(verdict_on(DP, small, large, ratio=AHEAD), "next")
    assert "Raise the batch to 64 per device: 1.50x as many samples per second" in found
    # not by the batch alone
    for other in (replace(large, nodes=2), replace(large, cell="ddp-d4-b64-amp-bf16")):
        of = replace(
            comparison(DP, small, other, ratio=AHEAD), variants={"ddp-d4-b64-amp-bf16": "amp-bf16"}
        )
        assert "Raise the batch" not in said(answer(of, "cuda"), "next")
    # without an interval, which may reach beyond the larger batch's
    unsteady = cell("ddp", 4, 32, samples_per_s=1000)
    assert "Raise the batch" not in said(verdict_on(DP, unsteady, large, ratio=AHEAD), "next")
