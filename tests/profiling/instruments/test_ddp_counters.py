"""DDP's logged counters of a step."""

import pytest

from dpscope.profiling.instruments.ddp_counters import counters_of

TIMES = {
    "forward_compute_time": 1_000_000,
    "backward_compute_time": 2_000_000,
    "backward_comm_time": 500_000,
    "backward_compute_comm_overlap_time": 250_500,
}


@pytest.mark.parametrize(
    ("buckets", "bucket_bytes"),
    [
        ({"bucket_sizes": "300, 100", "rebuilt_bucket_sizes": "100, 300"}, (100, 300)),
        ({"bucket_sizes": "300, 100"}, (300, 100)),  # with find_unused_parameters none are rebuilt
        ({"bucket_sizes": "300, 100", "rebuilt_bucket_sizes": ""}, (300, 100)),
    ],
)
def test_buckets_are_those_in_use(buckets: dict[str, str], bucket_bytes: tuple[int, ...]) -> None:
    read = counters_of(3, {**TIMES, **buckets})
    assert read.step == 3
    assert read.bucket_bytes == bucket_bytes
    assert (read.forward_compute_us, read.backward_comm_us, read.overlap_us) == (1000.0, 500.0, 250.5)
