"""Numbers in the documents that dpscope printed: each is computed again, and the sentence that
states it must stand in its page.

The first screens in the README are compared in `tests/analysis/output/test_summary.py`, generated
pages in `test_docs.py`.
"""

from collections.abc import Iterator

import pytest

from dpscope.analysis.costs.calibration_files import calibration_from_logs
from dpscope.analysis.costs.formulas import bus_gb_per_s
from dpscope.analysis.text.units import show_time
from dpscope.analysis.traces.ranks.job import Job
from dpscope.analysis.traces.ranks.trace_analysis import analyze_traces
from tests.helpers.known import known
from tests.helpers.paths import DATA, ROOT

A100 = DATA / "a100x2_ddp_resnet50_rank0.json.gz"
pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def a100() -> Job:
    return analyze_traces([A100])


def states(page: str, *sentences: str) -> Iterator[str]:
    """The sentences that are not in the page, whose lines are joined."""
    text = " ".join((ROOT / "docs" / page).read_text(encoding="utf-8").split())
    return (sentence for sentence in sentences if sentence not in text)


def test_exposed_communication_of_the_a100_trace(a100: Job) -> None:
    exposed = show_time(known(known(a100.ledger).exposed_us))
    assert (
        list(
            states(
                "reading-the-report.md",
                f"for the A100 trace in `tests/data`, of which `dpscope analyze` reads {exposed})",
            )
        )
        == []
    )


def test_contention_of_the_a100_trace(a100: Job) -> None:
    every = known(a100.contentions.every)
    low, high = known(every.ratio_interval)
    stated = (
        f"that trace's ratio is {every.ratio:.2f} ({low:.2f} to {high:.2f}), from {every.compared:.0%} of the overlapped compute "
        "time"
    )
    assert list(states("measures.md", stated)) == []


def test_errors_of_the_fits_of_nccl_tests_logs() -> None:
    logs = sorted((DATA / "nccl_tests").glob("*.log"))
    calibration = calibration_from_logs(logs)
    fits = calibration.fits
    medians = [100 * fit.median_relative_error for fit in fits]
    largest = max(fit.largest_relative_error for fit in fits)
    stated = f"the median relative error is {min(medians):.1f} to {max(medians):.1f}%, the largest {largest:.1%}"
    assert list(states("calibration.md", stated)) == []
    reduced = [point for point in calibration.points if point.collective == "all_reduce"]
    reached = max(
        known(bus_gb_per_s("all_reduce", point.size_bytes, point.devices, point.times_us[0]))
        for point in reduced
    )
    assert list(states("calibration.md", f"reach {reached:.0f} of their 300 GB/s")) == []
