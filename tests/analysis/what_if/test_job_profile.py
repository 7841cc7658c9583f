"""Profiles of traces, made and real: replayed, they take as long as they were measured to."""

import gzip
from pathlib import Path

import pytest

from dpscope.analysis.what_if.job_profile import JobProfile, job_profile
from dpscope.analysis.what_if.replay import base_error
from dpscope.profiling.store.errors import DpscopeError
from tests.generated_traces.generator import DdpOptions, ddp_trace, gloo_trace, write_trace
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


def test_an_export_without_steps_needs_ranges_around_them(tmp_path: Path) -> None:
    export = tmp_path / "export.sqlite"
    export.write_bytes(gzip.decompress((DATA / "nsys_no_nccl.sqlite.gz").read_bytes()))
    with pytest.raises(DpscopeError, match=r"record an NVTX range .* name it with --steps-by"):
        job_profile([export])


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


def test_a_far_longer_step_is_not_replayed(tmp_path: Path) -> None:
    """Its pause of a second would count as a lateness of every hundredth step."""
    paced(tmp_path, [(60.0, 40.0)] * 3 + [(60.0, 1_040.0)] + [(60.0, 40.0)] * 2)
    job = job_profile(sorted(tmp_path.glob("*.json")))
    assert {one.step for one in job.profiles} == {1, 2, 3, 5, 6}
    assert max(one.step_us for one in job.profiles) == pytest.approx(75e3, abs=1)
