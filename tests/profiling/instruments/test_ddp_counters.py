"""DDP's logged counters of a step."""

from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from dpscope.profiling.instruments import ddp_counters
from dpscope.profiling.instruments.ddp_counters import counters_of, parameter_sizes, tensor_sizes
from dpscope.profiling.instruments.trace_recorder import WARMUP_STEPS
from dpscope.profiling.records.run import TensorSize

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
    assert (read.forward_compute_us, read.backward_comm_us, read.overlap_us) == (
        1000.0,
        500.0,
        250.5,
    )


def test_a_step_has_the_waits_for_a_core_within_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read after each of five steps; DDP describes step 2 after step 3."""
    waited_us = iter((0.0, 10.0, 30.0, 70.0, 150.0))
    monkeypatch.setattr(ddp_counters, "cpu_wait_us", lambda: next(waited_us))
    iterations = count()

    def logged() -> dict[str, object]:
        return {**TIMES, "bucket_sizes": "300", "iteration": next(iterations)}

    model: Any = SimpleNamespace(
        _set_ddp_runtime_logging_sample_rate=lambda rate: None, _get_ddp_logging_data=logged
    )
    counting = ddp_counters.StepCounters(model)
    for _ in range(WARMUP_STEPS + 2):
        counting.step_ended()
    (counter,) = counting.counters
    assert (counter.step, counter.cpu_wait_us) == (2, 70.0 - 30.0)


def test_sizes_of_a_model_whose_weights_are_shared_and_partly_frozen() -> None:
    first = nn.Linear(3, 2)  # 6 weights and 2 biases
    # and 2 + 2; buffers: 2 + 2 floats and one int64
    model = nn.Sequential(first, first, nn.BatchNorm1d(2))
    first.bias.requires_grad_(False)
    sizes = parameter_sizes(model)
    assert (sizes.parameter_count, sizes.parameter_bytes, sizes.gradient_bytes) == (12, 48, 40)
    assert (sizes.gradient_elements, sizes.gradient_shapes) == (10, ((2, 3), (2,), (2,)))
    assert (sizes.buffer_bytes, sizes.buffer_tensors[-1]) == (24, TensorSize("int64", 8))
    # Of another type and layout.
    half = nn.Parameter(torch.zeros(5, dtype=torch.bfloat16))
    sparse = torch.eye(3).to_sparse()
    sizes = tensor_sizes([half], [sparse])
    assert (sizes.gradient_bytes, sizes.buffer_bytes) == (10, 36)
