"""Sizes of collectives' buffers, from what traces record: element counts, shapes, element types in
all their spellings.
"""

import re
from math import prod
from typing import Any, NamedTuple

import msgspec

from dpscope.analysis.traces.reading.event_table import CommunicationArgs
from dpscope.analysis.traces.reading.json_events import MOST_COUNT

# Bytes per element, by c10's names (c10/core/ScalarType.h), C++'s as `Input type` has them, and
# numpy's; lower case, without namespace.
_ELEMENT_BYTES = {
    "float": 4,
    "float32": 4,
    "half": 2,
    "float16": 2,
    "bfloat16": 2,
    "double": 8,
    "float64": 8,
    "long": 8,
    "long int": 8,
    "long long": 8,
    "int64_t": 8,
    "int64": 8,
    "int": 4,
    "int32_t": 4,
    "int32": 4,
    "short": 2,
    "short int": 2,
    "int16_t": 2,
    "int16": 2,
    "char": 1,
    "signed char": 1,
    "int8_t": 1,
    "int8": 1,
    "byte": 1,
    "unsigned char": 1,
    "uint8_t": 1,
    "uint8": 1,
    "bool": 1,
    "boolean": 1,
    "unsigned short": 2,
    "short unsigned int": 2,
    "uint16_t": 2,
    "uint16": 2,
    "unsigned int": 4,
    "unsigned": 4,
    "uint32_t": 4,
    "uint32": 4,
    "unsigned long": 8,
    "long unsigned int": 8,
    "unsigned long long": 8,
    "uint64_t": 8,
    "uint64": 8,
    "complexhalf": 4,
    "complex<half>": 4,
    "complex32": 4,
    "complexfloat": 8,
    "complex<float>": 8,
    "complex64": 8,
    "complexdouble": 16,
    "complex<double>": 16,
    "complex128": 16,
    "qint8": 1,
    "quint8": 1,
    "qint32": 4,
    "bits8": 1,
    "bits16": 2,
    "float4_e2m1fn_x2": 1,
}
_FLOAT8 = re.compile(r"^(?:__nv_)?(?:float8|fp8)_?e\d+m\d+")
_NAMESPACES = re.compile(r"c10::|at::|torch::|torch\.|std::|numpy\.")

# c10d's operators that take an output and then an input; the others work in place.
# Source: torch/csrc/distributed/c10d/Ops.cpp.
_OUTPUT_THEN_INPUT = re.compile(
    r"^c10d::(?:_?all_?gather|_?reduce_scatter|all_?to_?all|gather_|scatter_)"
)

_DEEPEST = 8  # lists in lists of shapes: torch records two
_LONGEST = 1 << 20  # bytes of JSON: shapes of some 100,000 tensors
_MOST_DIMENSIONS = 64  # of a tensor, by torch
# larger at the root alone, and the trace does not say who that is
_ONE_SIDED = frozenset({"gather", "scatter"})


def element_bytes(dtype: str | None) -> int | None:
    """Bytes of one element of a dtype as traces name it; None for an unknown name.

    >>> [element_bytes(name) for name in ("c10::BFloat16", "torch.float32", "Float8_e4m3fn", "Scalar")]
    [2, 4, 1, None]
    """
    if not dtype:
        return None
    plain = _NAMESPACES.sub("", dtype).strip().lower()
    return 1 if _FLOAT8.match(plain) else _ELEMENT_BYTES.get(plain)


def group_size(args: CommunicationArgs, kind: str | None) -> int | None:
    """Ranks of a collective's group: as recorded, else by the ratio of its buffers; None if both
    are unknown.

    An all-gather's output is its input from every rank, a reduce-scatter's input is its output for
    every rank.
    """
    if args.group_size is not None and args.group_size > 0:
        return args.group_size
    if kind not in ("all_gather", "reduce_scatter"):
        return None
    sizes = args.input_elements, args.output_elements
    sent, received = buffer_sizes(args) if None in sizes else sizes
    part, whole = (sent, received) if kind == "all_gather" else (received, sent)
    if not part or not whole or whole % part:  # ranks may hold unequal parts
        return None
    return whole // part


def buffer_bytes(args: CommunicationArgs, kind: str | None, group_size: int | None) -> int | None:
    """The larger of a rank's input and output buffer; None where elements, type or the group's size
    are unknown or absurd.

    Where one of the two is recorded: an all-gather's output is N inputs, a reduce-scatter's input N
    outputs; other collectives are as large on both sides (an all-to-all with uneven splits may not
    be).
    """
    sent, received = buffer_sizes(args)
    known = [size for size in (sent, received) if size is not None]
    if not known or (kind in _ONE_SIDED and len(known) < 2):
        return None
    size = max(known)
    if (kind == "all_gather" and received is None) or (kind == "reduce_scatter" and sent is None):
        size *= group_size or -1
    return size if 0 <= size < MOST_COUNT else None


def buffer_sizes(args: CommunicationArgs) -> tuple[int | None, int | None]:
    """Bytes of the input and of the output, as far as they are recorded."""
    size = element_bytes(args.dtype)
    both = (args.input_elements, args.input_bytes), (args.output_elements, args.output_bytes)
    sent, received = (
        given if elements is None or size is None else elements * size for elements, given in both
    )
    return sent, received


class _Tensor(NamedTuple):
    """One argument: a tensor, or a list of them together."""

    elements: int
    dtype: str | None  # None: a list's types are not recorded, or they differ
    bytes: int | None


def recorded_buffers(name: str, input_dims: bytes, input_type: bytes) -> CommunicationArgs | None:
    """The buffers by `Input Dims` and `Input type` of an operator or range (JSON, as recorded):
    elements, type, or bytes.

    Either may be absent (empty). None where one of them is damaged: no JSON, no UTF-8, without a
    number, or longer than any.
    """
    if max(len(input_dims), len(input_type)) > _LONGEST:
        return None
    try:
        dims = msgspec.json.decode(input_dims) if input_dims else None
        types = msgspec.json.decode(input_type) if input_type else None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    if not isinstance(dims, list):
        return CommunicationArgs()
    arguments = _arguments(dims, types)
    absurd = any(
        argument is not None and max(argument.elements, argument.bytes or 0) >= MOST_COUNT
        for argument in arguments
    )
    if absurd or b"null" in input_dims:  # what NaN was repaired to
        return None
    return _buffers(*_sent_and_received(name, arguments))


def _sent_and_received(
    name: str, arguments: "list[_Tensor | None]"
) -> "tuple[_Tensor | None, _Tensor | None]":
    first, second = [*arguments, None, None][:2]
    if _OUTPUT_THEN_INPUT.match(name) or (name == "record_param_comms" and first and second):
        return second, first
    if name == "record_param_comms":
        return first, None
    if name.startswith("c10d::"):
        return first, first
    return _together(arguments), None  # a range: every tensor an argument


def _buffers(sent: _Tensor | None, received: _Tensor | None) -> CommunicationArgs:
    """Elements and their one type, or bytes where types are mixed."""
    dtypes = {tensors.dtype for tensors in (sent, received) if tensors is not None} - {None}
    sizes: dict[str, Any] = {"dtype": next(iter(dtypes)) if len(dtypes) == 1 else None}
    for name, one in (("input", sent), ("output", received)):
        if one is not None and one.bytes is not None and (len(dtypes) > 1 or one.dtype is None):
            sizes[f"{name}_bytes"] = one.bytes
        elif one is not None and len(dtypes) <= 1:
            sizes[f"{name}_elements"] = one.elements
    return CommunicationArgs(**sizes)


def _together(arguments: list[_Tensor | None]) -> _Tensor | None:
    tensors = [argument for argument in arguments if argument is not None]
    if not tensors:
        return None
    dtypes, sizes = {tensor.dtype for tensor in tensors}, [tensor.bytes for tensor in tensors]
    total = None if None in sizes else sum(size or 0 for size in sizes)
    return _Tensor(
        sum(tensor.elements for tensor in tensors),
        dtypes.pop() if len(dtypes) == 1 else None,
        total,
    )


def _arguments(shapes: list[Any], kinds: object, depth: int = 0) -> list[_Tensor | None]:
    """Each of a list of recorded shapes, by its type where as many types are recorded."""
    types = kinds if isinstance(kinds, list) and len(kinds) == len(shapes) else [None] * len(shapes)
    return [_tensor(shape, kind, depth) for shape, kind in zip(shapes, types, strict=True)]


def _tensor(shape: object, kind: object, depth: int) -> _Tensor | None:
    """One argument by its recorded shape and type; None for one that is no tensor."""
    if not isinstance(shape, list) or depth > _DEEPEST:
        return None
    # a list of tensors, or of lists of them
    if shape and all(isinstance(extent, list) for extent in shape):
        return _together(_arguments(shape, kind, depth + 1))
    dtype = kind if isinstance(kind, str) else None
    size = element_bytes(dtype)
    is_scalar = size is None and (dtype is not None or not shape)  # or a device, a process group
    if is_scalar or len(shape) > _MOST_DIMENSIONS:
        return None
    count = _elements(shape)
    return _Tensor(count, dtype, None if size is None else count * size)


def _elements(shape: list[Any]) -> int:
    """Of a tensor of this shape: without dimensions it holds one element; a size that is no number
    counts as 0.
    """
    return prod(extent if isinstance(extent, int) and extent >= 0 else 0 for extent in shape)
