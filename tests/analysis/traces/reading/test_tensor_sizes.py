"""Sizes of buffers from shapes and types as torch records them; expectations by hand."""

import json
from dataclasses import replace

import pytest

from dpscope.analysis.traces.reading.tensor_sizes import (
    buffer_bytes,
    element_bytes,
    recorded_buffers,
)


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("float", 4), ("Float", 4), ("c10::Half", 2), ("c10::BFloat16", 2), ("BFloat16", 2), ("double", 8), ("Long", 8),
        ("long int", 8), ("int", 4), ("short int", 2), ("signed char", 1), ("unsigned char", 1), ("Byte", 1), ("bool", 1),
        ("torch.float32", 4), ("torch.bfloat16", 2), ("at::Half", 2), ("c10::Float8_e4m3fn", 1), ("Float8_e5m2fnuz", 1),
        ("Float8_e8m0fnu", 1), ("c10::complex<float>", 8), ("ComplexDouble", 16), ("UInt16", 2), ("unsigned int", 4),
        ("Scalar", None), ("TensorList", None), ("", None), (None, None),
    ],
)  # fmt: skip
def test_element_bytes(name: str | None, size: int | None) -> None:
    assert element_bytes(name) == size


def bytes_of(
    name: str,
    dims: object,
    types: object,
    kind: str,
    group_size: int | None = 4,
    dtype: str | None = None,
) -> int | None:
    found = recorded_buffers(name, json.dumps(dims).encode(), json.dumps(types).encode())
    assert found is not None
    return buffer_bytes(replace(found, dtype=found.dtype or dtype), kind, group_size)


@pytest.mark.parametrize(
    ("name", "dims", "types", "kind", "size"),
    [
        # output, then input: 400 x 4 B gathered from 100 a rank
        (
            "c10d::_allgather_base_",
            [[400], [100], [], []],
            ["float", "float", "", "Scalar"],
            "all_gather",
            1600,
        ),
        (
            "c10d::_reduce_scatter_base_",
            [[100], [400], []],
            ["c10::Half", "c10::Half", ""],
            "reduce_scatter",
            800,
        ),
        ("c10d::alltoall_base_", [[30, 2], [50, 2], []], ["float", "float", ""], "all_to_all", 400),
        # a range lists every input tensor
        ("nccl:_all_gather_base", [[100]], ["float"], "all_gather", 4 * 100 * 4),
        ("nccl:_reduce_scatter_base", [[400]], ["float"], "reduce_scatter", 1600),
        ("nccl:all_reduce", [[100], [7, 3]], ["float", "float"], "all_reduce", (100 + 21) * 4),
        ("nccl:all_reduce_coalesced", [[100], [7]], ["float", "long int"], "all_reduce", 400 + 56),
        ("gloo:broadcast", [[20]], ["long int"], "broadcast", 160),
        # nested lists with their own types
        (
            "c10d::allreduce_",
            [[[100], [21]], [], []],
            [["float", "double"], "", ""],
            "all_reduce",
            400 + 168,
        ),
        (
            "c10d::allgather_",
            [[[[100], [100]]], [[100]], []],
            [[["float"] * 2], ["float"], ""],
            "all_gather",
            800,
        ),
        # a list in the output's place that was not recorded: N times the input
        ("c10d::allgather_", [[], [[100]], []], ["", ["float"], ""], "all_gather", 4 * 400),
        (
            "c10d::reduce_scatter_",
            [[[100]], [], []],
            [["float"], "", ""],
            "reduce_scatter",
            4 * 400,
        ),
        (
            "_c10d_functional::all_reduce",
            [[5, 5], [], []],
            ["c10::BFloat16", "", ""],
            "all_reduce",
            50,
        ),
        (
            "_c10d_functional::all_gather_into_tensor",
            [[100], [], []],
            ["float", "Scalar", ""],
            "all_gather",
            1600,
        ),
        ("record_param_comms", [[[100]], [], []], [["float"], "", ""], "all_gather", 1600),
        ("record_param_comms", [[100], [], []], ["float", "", ""], "reduce_scatter", 400),
        # a tensor without dimensions
        ("c10d::broadcast_", [[[]], []], [["float"], ""], "broadcast", 4),
    ],
)
def test_sizes_by_operator(name: str, dims: object, types: object, kind: str, size: int) -> None:
    assert bytes_of(name, dims, types, kind) == size
