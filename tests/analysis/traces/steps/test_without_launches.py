"""Device work whose launch is not in the trace: counted in the step it ran in, with a finding, and
never as idle time.
"""

from pathlib import Path

import pytest

from dpscope.analysis.traces.ranks.job import Job
from tests.helpers.made_traces import Event, analyzed_events, launch, on_device, step

TIMES = ["step_us", "compute_us", "communication_us", "exposed_us", "idle_us", "by_time_us"]


def times(folder: Path, events: list[Event]) -> tuple[list[list[float]], Job]:
    analysis = analyzed_events(folder, events)
    return analysis.steps[TIMES].astype(float).to_numpy().tolist(), analysis


def message(analysis: Job, code: str) -> str:
    return next(finding.message for finding in analysis.findings if finding.code == code)


def test_a_trace_without_steps_and_launches_is_one_step(tmp_path: Path) -> None:
    """Kernels 0-100 and 100-150, an all-reduce 120-200: 200 us, 150 of compute, 80 of
    communication, 50 exposed.
    """
    work = [on_device("gemm", 0, 100), on_device("gemm", 100, 50)]
    work.append(on_device("ncclDevKernel_AllReduce", 120, 80, stream=20))
    rows, analysis = times(tmp_path, work)
    assert rows == [[200, 150, 80, 50, 0, 200]]
    assert analysis.collectives["step"].isna().all()  # the one step has no number
    assert message(analysis, "no_steps").endswith(
        "no steps are marked: the whole length is taken as one step"
    )
    assert "events_of_no_step" not in {finding.code for finding in analysis.findings}


def replayed(*, copies: bool) -> list[Event]:
    """Three steps of 1,000 us; in each a graph replays a kernel of 600 us and an all-reduce of 300,
    250 us after it began.

    With `copies` each step also launches one of 10 us, 200 us after it began.
    """
    events = []
    for index in range(3):
        begin = 1_000.0 * index
        events += [step(index + 1, begin, 1_000), on_device("gemm", begin + 250, 600)]
        events.append(on_device("ncclDevKernel_AllReduce", begin + 650, 300, stream=20))
        if copies:
            events.append(launch(index + 1, begin + 150, "cudaMemcpyAsync"))
            events.append(
                on_device(
                    "Memcpy HtoD", begin + 200, 10, index + 1, stream=7, category="gpu_memcpy"
                )
            )
    return events


def test_replayed_graphs_next_to_launched_copies(tmp_path: Path) -> None:
    """Windows end with the copies, at 210, 1,210 and 2,210; in each whole one there is one graph,
    250-950 of the step before: 700 us busy, 600 of them compute, 100 of the all-reduce exposed, 300
    idle."""
    rows, analysis = times(tmp_path, replayed(copies=True))
    assert rows[1:] == [[1_000, 600, 300, 100, 300, 700]] * 2
    assert analysis.steps["collective_count"].tolist()[1:] == [1, 1]
    # The third step's graph ran after the last window.
    assert ": 4 count in the step in which they ran" in message(analysis, "events_of_no_step")


def test_what_was_launched_before_the_trace_is_in_no_step(tmp_path: Path) -> None:
    """On its stream it comes before all that was launched in the trace: it is left over, here from
    90 to 150.
    """
    work = [
        step(1, 0, 500),
        step(2, 500, 500),
        on_device("gemm", 90, 60, stream=20),
        launch(1, 50),
        launch(2, 60),
    ]
    work += [on_device("gemm", 80, 100, 1), on_device("gemm", 200, 100, 2, stream=20)]
    work += [launch(3, 600), on_device("gemm", 620, 100, 3)]
    rows, analysis = times(tmp_path, work)
    assert rows == [[220, 200, 0, 0, 20, 0], [420, 100, 0, 0, 320, 0]]
    assert message(analysis, "events_of_no_step").endswith(
        "1 GPU event (0.060 ms) launched in no traced step: not counted"
    )


@pytest.mark.parametrize(("left_over_us", "reported"), [(10, False), (11, True)])
def test_a_hundredth_of_the_device_time_may_be_of_no_step(
    tmp_path: Path, left_over_us: float, reported: bool
) -> None:
    """10 us of 1,010 are 0.99% and 11 of 1,011 are 1.09%: less than 1% is a trace's edge and no
    news.
    """
    work = [
        step(1, 0, 2_000),
        on_device("gemm", 10, left_over_us),
        launch(1, 50),
        on_device("gemm", 100, 1_000, 1),
    ]
    _, analysis = times(tmp_path, work)
    assert ("events_of_no_step" in {one.code for one in analysis.findings}) == reported


@pytest.mark.parametrize(("number", "counted_us"), [(7, 0.0), (90, 30.0), (0, 30.0)])
def test_correlations_identify_work_launched_before_the_trace(
    tmp_path: Path, number: int, counted_us: float
) -> None:
    """The trace's calls are numbered from 50 on; on the same stream a replayed kernel without a
    call runs in both steps.

    A kernel of 30 us at 310 belongs to step 1 unless its number is below 50: its launch precedes
    the trace.
    """
    events = [
        step(1, 0, 1_000), step(2, 1_000, 1_000),
        launch(50, 100), on_device("gemm", 200, 100, 50), launch(52, 1_100), on_device("gemm", 1_200, 100, 52),
        on_device("replayed", 400, 50, 90, stream=7), on_device("replayed", 1_400, 50, 91, stream=7),
        on_device("gemm", 310, 30, number, stream=7),
        launch(51, 400), on_device("last", 500, 10, 51), launch(53, 1_400), on_device("last", 1_500, 10, 53),
    ]  # fmt: skip
    rows, _ = times(tmp_path, events)
    assert [row[1] for row in rows] == [100 + 50 + 10 + counted_us, 160]
