"""Sizes of models, counted by hand."""

import torch
from torch import nn

from dpscope.profiling.instruments.parameter_sizes import parameter_sizes, tensor_sizes
from dpscope.profiling.records.run import TensorSize


def test_sizes_of_a_model_whose_weights_are_shared_and_partly_frozen() -> None:
    first = nn.Linear(3, 2)  # 6 weights and 2 biases
    model = nn.Sequential(first, first, nn.BatchNorm1d(2))  # and 2 + 2; buffers: 2 + 2 floats and one int64
    first.bias.requires_grad_(False)
    sizes = parameter_sizes(model)
    assert (sizes.parameter_count, sizes.parameter_bytes, sizes.gradient_bytes) == (12, 48, 40)
    assert (sizes.gradient_elements, sizes.gradient_shapes) == (10, ((2, 3), (2,), (2,)))
    assert (sizes.buffer_bytes, sizes.buffer_tensors[-1]) == (24, TensorSize("int64", 8))


def test_sizes_of_tensors_of_another_type() -> None:
    half = nn.Parameter(torch.zeros(5, dtype=torch.bfloat16))
    assert tensor_sizes([half], []).gradient_bytes == 10
