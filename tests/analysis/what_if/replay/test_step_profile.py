"""DDP's rule for buckets, by hand and compared with a real job's."""

from pathlib import Path

import numpy as np

from dpscope.analysis.what_if.profiles.job import job_profile
from dpscope.analysis.what_if.replay.step_profile import Bucketing, Gradients, bucket_bytes, bucket_ends, not_reproduced
from tests.helpers.paths import DATA

MIB = 1024 * 1024
A100: Path = DATA / "a100x2_ddp_resnet50_rank0.json.gz"


def test_a_bucket_closes_once_it_holds_its_limit() -> None:
    sizes = [0.5 * MIB, 0.5 * MIB, 24 * MIB, 2 * MIB, 1 * MIB]
    assert bucket_ends(sizes, Bucketing()) == [1, 3, 4]  # 1 MiB, then 26 >= 25, then the rest
    assert bucket_ends(sizes, Bucketing(cap_mib=2)) == [2, 3, 4]  # a stated cap is the first limit too
    assert bucket_ends(sizes, Bucketing(overlap=False)) == [4]
    assert bucket_ends([], Bucketing()) == []


def test_bytes_of_buckets_add_up() -> None:
    gradients = Gradients(np.array([1.0, 2.0, 4.0]), np.array([1, 2, 3]), "recorded")
    assert bucket_bytes(gradients, [1, 2]) == [3, 4]


def test_a_real_job_s_buckets_reach_their_limits_but_not_larger_ones() -> None:
    # 8,196,000 >= 1 MiB; 31,502,336, 26,255,360 and 26,550,272 >= 26,214,400; the last need not
    step = job_profile([A100]).profiles[0]
    assert [round(one.bytes) for one in step.buckets] == [8_196_000, 31_502_336, 26_255_360, 26_550_272, 9_724_160]
    assert not_reproduced(step, Bucketing()) is None
    assert "8.20 MB" in (not_reproduced(step, Bucketing(cap_mib=25)) or "")
    assert not_reproduced(step, Bucketing(overlap=False)) is not None
