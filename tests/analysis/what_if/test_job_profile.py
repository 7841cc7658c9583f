"""Profiles of traces, made and real: replayed, they take as long as they were measured to."""

from pathlib import Path

import numpy as np
import pytest

from dpscope.analysis import attribute, collectives, read_trace
from dpscope.analysis.what_if.job_profile import JobProfile, job_profile
from dpscope.analysis.what_if.replay import base_error
from dpscope.profiling.store.errors import DpscopeError
from tests.generated_traces.generator import DdpOptions, ddp_trace, gloo_trace, write_trace
from tests.helpers.made_traces import operator, write
from tests.helpers.paced_ranks import paced
from tests.helpers.paths import DATA, EXAMPLE_RUN

A100 = DATA / "a100x2_ddp_resnet50_rank0.json.gz"
V100 = sorted((DATA / "v100x8_ddp_dlrm").glob("*.json.gz"))
EXAMPLE = EXAMPLE_RUN / "cells" / "ddp-d2-b8"


def of_two_ranks(folder: Path, options: DdpOptions | None) -> JobProfile:
    """Generated: None is gloo's."""
    files = []
    for rank in range(2):
        made = gloo_trace(rank) if options is None else ddp_trace(rank, options=options)
        files.append(folder / f"0_{rank}.pt.trace.json.gz")
        write_trace(made.trace, files[-1])
    return job_profile(files)


@pytest.mark.parametrize(
    "options",
    [
        DdpOptions(),
        DdpOptions(lag=True),
        DdpOptions(straggler=1),
        DdpOptions(metadata="none"),
        None,
    ],
    ids=["plain", "lagging", "straggler", "no metadata", "gloo"],
)
def test_generated_steps_are_replayed_exactly(tmp_path: Path, options: DdpOptions | None) -> None:
    job = of_two_ranks(tmp_path, options)
    assert {one.rank for one in job.profiles} == {0, 1}
    for one in job.profiles:
        assert base_error(one) == pytest.approx(0, abs=1e-9)


def test_a_size_that_the_trace_does_not_show_is_unknown(tmp_path: Path) -> None:
    """Broadcasts of 38,400 and 160 bytes by NCCL and of 38,400 by gloo, with and without their
    sizes in the trace.
    """

    def sizes(job: JobProfile) -> set[float | None]:
        return {
            other.bytes for one in job.profiles for other in one.others if other.kind == "broadcast"
        }

    for folder in ("nccl", "bare", "gloo", "bare gloo"):
        (tmp_path / folder).mkdir()
    assert sizes(of_two_ranks(tmp_path / "nccl", DdpOptions())) == {38_400.0, 160.0}
    assert sizes(of_two_ranks(tmp_path / "bare", DdpOptions(metadata="none"))) == {None}
    assert sizes(of_two_ranks(tmp_path / "gloo", None)) == {38_400.0}
    files = []
    for rank in range(2):
        trace = gloo_trace(rank).trace
        for event in trace["traceEvents"]:
            event.get("args", {}).pop("Input Dims", None)
        files.append(tmp_path / "bare gloo" / f"0_{rank}.pt.trace.json.gz")
        write_trace(trace, files[-1])
    assert sizes(job_profile(files)) == {None}


def test_a_straggler_s_lateness_is_read_off_the_other_rank(tmp_path: Path) -> None:
    # rank 1 begins its backward 500 us late (tests/generated_traces/ddp.py)
    job = of_two_ranks(tmp_path, DdpOptions(straggler=1))
    waiting = next(one for one in job.profiles if one.rank == 0)
    assert waiting.buckets[0].late_us == pytest.approx(500, abs=1)
    late = next(one for one in job.profiles if one.rank == 1)
    assert late.buckets[0].late_us == 0


@pytest.mark.long
@pytest.mark.parametrize(
    "files",
    [[A100], V100, sorted(EXAMPLE.glob("repeat0/traces/*.gz"))],
    ids=["A100", "V100", "CPU"],
)
def test_real_steps_are_replayed_within_one_percent(files: list[Path]) -> None:
    job = job_profile(files)
    assert job.profiles
    assert max(abs(base_error(one)) for one in job.profiles) <= 0.01


def test_collectives_start_once_they_are_ready_and_the_stream_is_free() -> None:
    """The rule that the replay rests on, on two real jobs: median 30 us at most, 95% 100 us at
    most.
    """
    late: list[float] = []
    for file in (A100, *V100):
        table = collectives(attribute(read_trace(file)))
        for _, rows in table[table["kind"] == "all_reduce"].groupby("step"):
            ends = (rows["start_us"] + rows["duration_us"]).shift().fillna(-np.inf)
            late += (rows["start_us"] - np.maximum(rows["ready_us"], ends)).tolist()
    assert len(late) == 39
    assert np.median(late) <= 30
    assert np.quantile(late, 0.95) <= 100


def test_gradients_are_known_where_the_trace_records_their_shapes() -> None:
    job = job_profile(sorted(EXAMPLE.glob("repeat0/traces/*.gz")))
    one = job.profiles[0]
    # Linear(8, 4)'s bias and weight first: 16, 128; then the normalisation's two of 8 and the
    # convolution's 864 bytes
    assert one.gradients.known == "recorded"
    assert sorted(one.gradients.bytes.tolist()) == [16, 32, 32, 128, 864]
    assert one.gradients.bytes[0] == 16


def test_what_a_trace_lacks_is_listed() -> None:
    job = job_profile([A100])
    assert job.devices == 2
    assert any("1 of 2 ranks" in prediction for prediction in job.lacks)
    assert any("record_shapes" in prediction for prediction in job.lacks)


def test_a_trace_without_a_whole_step_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DpscopeError, match="no whole step"):
        job_profile([write(tmp_path, [operator("aten::mm", 0.0, 5.0)])])


def test_a_far_longer_step_is_not_replayed(tmp_path: Path) -> None:
    """Its pause of a second would count as a lateness of every hundredth step."""
    paced(tmp_path, [(60.0, 40.0)] * 3 + [(60.0, 1_040.0)] + [(60.0, 40.0)] * 2)
    job = job_profile(sorted(tmp_path.glob("*.json")))
    assert {one.step for one in job.profiles} == {1, 2, 3, 5, 6}
    assert max(one.step_us for one in job.profiles) == pytest.approx(75e3, abs=1)
