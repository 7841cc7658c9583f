"""Contention of one job: planted slowdowns, jobs in which nothing compares, and the real A100
trace.
"""

from dataclasses import replace
from pathlib import Path

import pytest

from dpscope.analysis.output.trace_tables import to_tables, trace_content
from dpscope.analysis.traces.ranks.contention import (
    NO_OVERLAP,
    TOO_UNCERTAIN,
    Contention,
    contentions,
    of_enough_hidden,
)
from dpscope.analysis.traces.ranks.ledger import Ledger
from dpscope.analysis.traces.ranks.trace_analysis import analyze_traces
from dpscope.analysis.what_if.bases import contention_of_ledger
from tests.generated_traces.contended import Contended, write_contended_job
from tests.helpers.known import known
from tests.helpers.paths import DATA
from tests.helpers.run_cells import traced_table


def excludes_no_change(found: Contention) -> bool:
    interval = known(found.ratio_interval)
    return not interval.low <= 1.0 <= interval.high


@pytest.mark.long
@pytest.mark.parametrize("factor", [1.0, 1.3])
def test_intervals_hold_the_planted_slowdown_under_drift(tmp_path: Path, factor: float) -> None:
    inside = 0
    for seed in range(20):
        options = Contended(factor=factor, drift=0.1, together=True, seed=100 + seed)
        found = analyze_traces(write_contended_job(tmp_path, options, ranks=1)).contentions.every
        if found is not None:
            low, high = known(found.ratio_interval)
            inside += low <= factor <= high
    assert inside >= 17


def test_one_step_is_no_measure(tmp_path: Path) -> None:
    """The kernels of one step share what disturbs it: what is independent are its steps."""
    analysis = analyze_traces(write_contended_job(tmp_path, Contended(steps=1)))
    assert (analysis.contentions.every, analysis.contentions.reason) == (None, TOO_UNCERTAIN)


def test_without_noise_the_factor_and_the_cost_are_exact(tmp_path: Path) -> None:
    analysis = analyze_traces(write_contended_job(tmp_path, Contended(factor=1.3, noise=0.0)))
    every, *operators = trace_content(analysis)["contention"]
    assert every["contention_ratio"] == pytest.approx(1.3)
    hidden_us = every["hidden_us"]
    assert isinstance(hidden_us, float)
    assert every["contention_us"] == pytest.approx(hidden_us * (1 - 1 / 1.3))
    assert every["net_gain_us"] == pytest.approx(hidden_us / 1.3)
    assert every["compared_share"] == pytest.approx(1.0)
    assert [one["operator"] for one in operators] == ["aten::mm"]
    (table,) = (one for one in to_tables(analysis) if one.title.startswith("Contention"))
    assert [row[:2] for row in table.rows] == [("all operators", "1.30"), ("aten::mm", "1.30")]


def test_kernels_that_are_faster_next_to_communication_are_no_measure_of_it(tmp_path: Path) -> None:
    """Communication slows compute or leaves it alone: 0.84 shows that unlike kernels are
    compared.
    """
    analysis = analyze_traces(write_contended_job(tmp_path, Contended(factor=0.84, noise=0.0)))
    assert analysis.contentions.every is None
    assert analysis.contentions.by_operator == ()
    assert analysis.contentions.reason.startswith(
        "not measurable here: comparable kernels took 0.84 times as long"
    )
    ledger = known(analysis.ledger)
    assert (ledger.contention_us, ledger.contention_ratio) == (None, None)
    assert contention_of_ledger(ledger).gamma == 0.0
    assert contention_of_ledger(ledger).basis == ""


def test_kernels_of_the_backward_pass_are_compared_with_those_of_the_backward_pass(
    tmp_path: Path,
) -> None:
    """The forward pass runs the same free kernels at other times; with them among the free ones the
    ratio would be 0.84.
    """
    analysis = analyze_traces(
        write_contended_job(tmp_path, Contended(factor=1.3, noise=0.0, forward=2.0))
    )
    assert known(analysis.contentions.every).ratio == pytest.approx(1.3)


def test_little_hidden_communication_is_no_measure(tmp_path: Path) -> None:
    """Of 1 ms of communication 10 us must be hidden."""
    found = analyze_traces(write_contended_job(tmp_path, Contended(noise=0.0))).contentions
    of_step = Ledger(2000.0, 1000.0, 0.0, 990.0, 0.0, 10.0, communication_us=1000.0)
    assert of_enough_hidden(found, of_step) is found
    less = replace(of_step, exposed_transfer_us=995.0)
    unknown = of_enough_hidden(found, less)
    assert unknown.every is None
    assert unknown.reason.startswith("slowdown not known: 1.30x (1.")
    assert unknown.reason.endswith("from 5.00 µs of hidden communication a step")


def test_no_overlap_is_unknown_with_a_reason(tmp_path: Path) -> None:
    found = analyze_traces(write_contended_job(tmp_path, Contended(overlap=False))).contentions
    assert (found.every, found.reason) == (None, NO_OVERLAP)


def test_the_real_a100_trace_compares_no_kernels_of_different_sizes() -> None:
    """It records no input sizes: by name, grid and block alone, batch normalisation's backward pass
    had a ratio of 0.19.
    """
    found = analyze_traces(DATA / "a100x2_ddp_resnet50_rank0.json.gz").contentions
    every = known(found.every)
    assert every.ratio == pytest.approx(1.26, abs=0.02)
    assert every.compared == pytest.approx(0.30, abs=0.01)
    assert excludes_no_change(every)
    assert min(one.ratio for one in found.by_operator) > 0.95


def test_an_interval_is_students_over_steps() -> None:
    """Of 6 steps t is 2.5706. Kernels of 120 us, off by 3 us in each, would take 100 alone: 1/6 of
    each overlap. The sum over the steps has a variance of 6/5 x 6 x 3^2, over 6 x 120 us.
    """
    rows = [
        {"rank": 0, "device": 0, "operator": "aten::mm", "kernel_class": 1, "step": step, "place": int(overlapped),
         "overlapped": overlapped, "time_us": 120.0 + 3.0 * (-1) ** step if overlapped else 100.0,
         "overlap_us": 120.0 * overlapped, "pace": 1.0}
        for step in range(6) for overlapped in (True, False)
    ]  # fmt: skip
    found = known(contentions(traced_table("kernels", rows)).every)
    half = 2.5706 * (6 / 5 * 6 * 3**2) ** 0.5 / (6 * 120)
    interval = known(found.share_interval)
    assert (interval.low, interval.high) == pytest.approx((1 / 6 - half, 1 / 6 + half), rel=1e-4)


def test_ranks_are_compared_with_themselves() -> None:
    """Rank 1's clock is half as fast; its kernels take twice as long, free or not."""
    rows = [
        {"rank": rank, "device": rank, "operator": "aten::mm", "kernel_class": 1, "step": step, "place": int(overlapped),
         "overlapped": overlapped, "time_us": (rank + 1) * (120.0 if overlapped else 100.0),
         "overlap_us": (rank + 1) * 120.0 * overlapped, "pace": 1.0}
        for rank in range(2) for step in range(6) for overlapped in (True, False)
    ]  # fmt: skip
    found = known(contentions(traced_table("kernels", rows)).every)
    assert found.ratio == pytest.approx(1.2)
