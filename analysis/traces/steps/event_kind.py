"""What an event is: compute, collective, peer copy, other copy, host work; and which collective a
name means.
"""

import re
from enum import IntEnum
from functools import lru_cache

import numpy as np

from dpscope.analysis.traces.reading.event_table import (
    BoolColumn,
    Category,
    CodeColumn,
    EventTable,
    IntColumn,
)
from dpscope.analysis.traces.reading.nsys_collectives import LAUNCHING_CALL
from dpscope.analysis.traces.steps.intervals import innermost
from dpscope.profiling.records.range_names import DP_COMMUNICATION_PHASES, base_name

# Kernel names by library, with where they are defined, and the collective of those whose names do
# not state it. A kernel of no library here counts as compute; if its name contains reduce, gather,
# all-to-all or nvshmem, and no library of computation is known for such names, a finding reports
# it.
_FAMILIES: tuple[tuple[str, str | None], ...] = (
    # NCCL by its generations (ncclAllReduceRingLLKernel..., ncclKernel_..., ncclDevKernel_...,
    # ncclSymkDevKernel_...), RCCL and MSCCL among them.
    (r"nccl|rccl|mscclKernel", None),
    (r"mscclpp", None),  # MSCCL++: namespace mscclpp
    # vLLM and SGLang (csrc/custom_all_reduce.cuh), aiter: cross_device_reduce_1stage, _2stage;
    # quick all-reduce.
    (r"cross_device_reduce|allreduce_prototype_(?:one|two)shot", "all_reduce"),
    # FlashInfer, TensorRT-LLM and aiter: all-reduces fused with the norm that follows.
    (
        r"all_?reduce_fusion_kernel|lamport_style_one_shot_all_reduce|moe_finalize_all_?reduce",
        "all_reduce",
    ),
    # torch symmetric memory (CUDASymmetricMemoryOps.cu), torch's earlier IntraNodeComm, FBGEMM's,
    # TensorRT-LLM's.
    (
        r"(?:one|two)_?shot_?all_?reduce|hybridCubeMeshAllReduce|multimem_(?:one_shot_)?all_?reduce",
        "all_reduce",
    ),
    (r"multimem_all_?gather", "all_gather"),
    (r"multimem_(?:one_shot_)?reduce", "reduce"),
    (r"all_to_all_vdev|allToAllV", "all_to_all"),
    # What its ranks wait for each other with (CUDASymmetricMemory.cu).
    (r"symmetric_memory::barrier_?kernel", "barrier"),
    (r"symmetric_memory::put_?signal_?kernel", "send"),
    (r"symmetric_memory::wait_?signal_?kernel", "recv"),
    (r"nvshmem", None),  # nvshmemi_..., nvshmem_..., and torch's kernels over it
    # DeepEP (csrc/kernels): intranode::, internode::, internode_ll:: with dispatch and combine;
    # PPLX likewise.
    (
        r"deep_?ep::|\b(?:intranode|internode|internode_ll)::(?:cached_)?(?:notify_)?(?:dispatch|combine)",
        "all_to_all",
    ),
    (r"pplx::all_?to_?all", "all_to_all"),
    (r"oneccl|\boneapi::ccl|(?<![a-z])ccl_(?:all|reduce|broad|send|recv)", None),  # oneCCL
    (r"(?<![a-z])(?:hccl|cncl|mccl|bkcl|xccl)", None),  # Ascend, Gaudi, Cambricon, MTIA, Kunlun
    (r"userbuffers_", None),  # Transformer Engine
)

# TorchInductor names a fused Triton kernel by the operators that it replaces, collectives before or
# behind it among them.
_INDUCTOR = re.compile(r"^triton_[a-z_]+?_fused_")
_ANY_FAMILY = re.compile("|".join(f"(?:{pattern})" for pattern, _ in _FAMILIES), re.IGNORECASE)
# Within one device it is a warp or a block that "all-reduces".
_COLLECTIVE = re.compile(
    r"(?<!warp)(?<!block)(?<!warp_)(?<!block_)all_?reduce|reduce_?scatter|all_?gather|all_?to_?all|nvshmem",
    re.IGNORECASE,
)
_MAY_COMMUNICATE = re.compile(r"reduce|gather", re.IGNORECASE)
# Reductions and gathers within one device: torch's own, CUB, Thrust, BLAS, DNN, Triton's by
# Inductor, and general words.
_COMPUTES = re.compile(
    r"at::|at_cuda_detail|\bcub::|thrust|cutlass|cublas|cudnn|hipcub|rocprim|rocblas|miopen|Cijk_|onednn|dnnl|triton_|"
    r"split_?k|reduce_1Block|reduction|soft_?max|norm|embedding|index|fbgemm|gemm|gemv|flash|attention|optimizer|adam|loss|"
    r"warp_?(?:all_?)?reduce|block_?(?:all_?)?reduce",
    re.IGNORECASE,
)


@lru_cache(maxsize=4096)
def is_collective_kernel(name: str) -> bool:
    """Whether a kernel of this name is a collective's."""
    return bool(_ANY_FAMILY.search(name)) and not _INDUCTOR.match(name)


@lru_cache(maxsize=4096)
def may_communicate(name: str) -> bool:
    """Whether a kernel that is of no known library looks by its name as if it communicated."""
    if _ANY_FAMILY.search(name) or _INDUCTOR.match(name):
        return False
    return bool(
        _COLLECTIVE.search(name) or (_MAY_COMMUNICATE.search(name) and not _COMPUTES.search(name))
    )


class Kind(IntEnum):
    """The split of a timeline (docs/measures.md): K is COMPUTE, C is COMMUNICATION_KINDS, on a CPU
    COLLECTIVE and HOST_RANGE, H is HOST_COPY, D is DEVICE_COPY.
    """

    OTHER = 0
    COMPUTE = 1  # a kernel that is no communication; on a CPU timeline, an operator
    COLLECTIVE = 2
    PEER_COPY = 3  # from device to another device
    HOST_COPY = 4  # from or to the host
    HOST_RANGE = 5  # dp-host's stand-in for communication
    # a further copy of a collective that copy engines carry out; its first is the COLLECTIVE
    COLLECTIVE_PART = 6
    DEVICE_COPY = 7  # within one device, and memsets
    COMMUNICATION_CALL = 8  # on a CPU timeline: a thread starts a collective or waits for one


COMMUNICATION_KINDS = (Kind.COLLECTIVE, Kind.COLLECTIVE_PART, Kind.PEER_COPY)
COPY_KINDS = (Kind.HOST_COPY, Kind.DEVICE_COPY)
DEVICE_KINDS = (Kind.COMPUTE, *COMMUNICATION_KINDS, *COPY_KINDS)


_PEER_COPY = re.compile(r"PtoP|Peer", re.IGNORECASE)
# "Memcpy HtoD (Pinned -> Device)" of CUDA, "CopyHostToDevice" of ROCm, "Memcpy M2D(Memory ->
# Device)" of XPU; A is a CUDA array.
_HOST_COPY = re.compile(
    r"Hto[DAH]|[DA]toH|HostTo|ToHost|[HM]2[DM]|D2[HM]|Pageable|Pinned", re.IGNORECASE
)
# Operators that start collectives or wait for them, and the ranges of FSDP's hooks, which do both.
_CALLS = re.compile(
    r"^(?:_?c10d(?:_functional|_functional_autograd)?::|gloo:|nccl:|record_param_comms)"
)
_HOOKS = re.compile(r"^(?:FSDP::|FullyShardedDataParallel\.)")
# Ranges of torch itself, which torch <= 1.12 records as operators.
_NO_OPERATOR = re.compile(
    r"^(?:ProfilerStep#|Optimizer\.|enumerate\(DataLoader\)|DistributedDataParallel\.)"
)

# The longer names first: "reduce" is part of three others.
_COLLECTIVES = (
    "all_reduce",
    "reduce_scatter",
    "all_gather",
    "all_to_all",
    "send_recv",
    "broadcast",
    "barrier",
    "scatter",
    "gather",
    "reduce",
    "send",
    "recv",
)

ROOTED = frozenset({"broadcast", "reduce", "scatter", "gather", "send", "recv", "send_recv"})
"""Collectives that do not make every rank wait for every other: they have no transfer and no
wait.
"""


@lru_cache(maxsize=4096)
def collective_kind(name: str) -> str | None:
    """Which collective a kernel's, an operator's or an annotation's name means; None if it names
    none.

    >>> collective_kind("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)")
    'all_reduce'
    >>> collective_kind("nccl:_all_gather_base")
    'all_gather'
    """
    if is_collective_kernel(name):
        kind = next(kind for pattern, kind in _FAMILIES if re.search(pattern, name, re.IGNORECASE))
        if kind is not None:
            return kind
    letters = re.sub(r"[^a-z]", "", name.partition("(")[0].lower())
    return next((kind for kind in _COLLECTIVES if kind.replace("_", "") in letters), None)


def is_peer_copy(name: str) -> bool:
    """Whether a copy of this name goes from one device to another."""
    return bool(_PEER_COPY.search(name))


def event_kinds(events: EventTable, launch_row: IntColumn) -> CodeColumn:
    """The Kind of every row of a trace with a device timeline; `launch_row` is the row of the call
    that launched each, or -1.

    A copy is a peer copy by its name, or by that of the call that launched it (hipMemcpyPeerAsync):
    ROCm's tracer calls a copy from one device to another and one within a device alike:
    CopyDeviceToDevice. What hipMemcpyAsync launched stays a copy: Kineto writes both addresses and
    one device, neither of which identifies the other device (libkineto, RocprofActivity_inl.h,
    RoctracerActivity_inl.h).
    """
    kinds = np.full(len(events), Kind.OTHER, dtype=np.uint8)
    kernels, copies = events.is_category(Category.KERNEL), events.is_category(Category.MEMCPY)
    kinds[kernels] = Kind.COMPUTE
    kinds[copies | events.is_category(Category.MEMSET)] = Kind.DEVICE_COPY
    kinds[kernels & events.named(is_collective_kernel)] = Kind.COLLECTIVE
    kinds[copies & events.named(_HOST_COPY.search)] = Kind.HOST_COPY
    peers = events.named(is_peer_copy)
    kinds[copies & (peers | np.append(peers, False)[launch_row])] = Kind.PEER_COPY
    return kinds


def cpu_event_kinds(events: EventTable) -> CodeColumn:
    """The Kind of every row of a trace without a device: operators compute, gloo's annotations
    communicate.
    """
    kinds = np.full(len(events), Kind.OTHER, dtype=np.uint8)
    annotations, operators = (events.annotations, events.operators)
    kinds[operators & ~events.named(_NO_OPERATOR.match)] = Kind.COMPUTE
    kinds[operators & events.named(_CALLS.match)] = Kind.COMMUNICATION_CALL
    kinds[(annotations | operators) & events.named(_HOOKS.match)] = Kind.COMMUNICATION_CALL
    kinds[named_annotations(events, "gloo:")] = Kind.COLLECTIVE
    kinds[annotations & events.named(lambda name: base_name(name) in DP_COMMUNICATION_PHASES)] = (
        Kind.HOST_RANGE
    )
    return kinds


def named_operators(events: EventTable, *prefixes: str) -> BoolColumn:
    """Operators whose name starts with any of the prefixes."""
    return events.operators & events.named(lambda name: name.startswith(prefixes))


# Ranges of torch 2.15's default NCCL engine carry no prefix: _all_gather_base, all_reduce,
# reduce_scatter_tensor_coalesced.
_BARE_RANGE = re.compile(
    r"^_?(?:all_?reduce|reduce_scatter|all_?gather|all_?to_?all|broadcast|reduce|gather|scatter|send|recv|coalesced)(?:_[a-z_]+)?$"
)


def nccl_ranges(events: EventTable) -> BoolColumn:
    """The ranges in which NCCL's work was launched: `nccl:*`, NCCL's own, or of the engine that
    puts no prefix before them.

    A range without a prefix, which any code may have named so, counts where torch recorded a
    collective in it or where it lies in an operator of `c10d`.
    """
    prefixed = named_annotations(events, "nccl:")
    if prefixed.any():
        return prefixed
    calls = nccl_calls(events)
    if calls.any():
        return calls
    bare = events.annotations & events.named(_BARE_RANGE.match)
    if not bare.any():
        return bare
    records = np.flatnonzero(named_operators(events, "record_param_comms"))
    rows = np.flatnonzero(bare)
    kept = np.zeros(len(events), dtype=bool)
    kept[rows[innermost(events, rows, named_operators(events, "c10d::")) >= 0]] = True
    holding = innermost(events, records, bare)
    kept[holding[holding >= 0]] = True
    return kept


def nccl_calls(events: EventTable) -> BoolColumn:
    """NCCL's own ranges in which its kernels are launched, as exports of Nsight Systems hold
    them.
    """
    return events.annotations & events.named(LAUNCHING_CALL.match)


def named_annotations(events: EventTable, prefix: str) -> BoolColumn:
    """User annotations whose name starts with `prefix`; where there are none, operators of such a
    name.

    torch <= 1.12 records its own ranges (ProfilerStep, gloo:, nccl:) as operators.
    """
    named = events.named(lambda name: name.startswith(prefix))
    annotations = named & events.annotations
    return annotations if annotations.any() else named & events.operators
