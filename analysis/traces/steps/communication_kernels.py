"""Which kernels communicate: the libraries whose names are known, and names that look as if they did.

One entry a library, with where its names are to be found. A kernel of no library here counts as compute; if its name contains
reduce, gather, all-to-all or nvshmem, and no library of computation is known for such names, a finding reports it.
"""

import re
from dataclasses import dataclass
from functools import lru_cache


@dataclass(frozen=True)
class Family:
    """Kernels of one library; `kind` is the collective they carry out, where that does not stand in their names."""

    pattern: re.Pattern[str]
    kind: str | None = None


def _family(pattern: str, kind: str | None = None) -> Family:
    return Family(re.compile(pattern, re.IGNORECASE), kind)


FAMILIES = (
    # NCCL by its generations (ncclAllReduceRingLLKernel..., ncclKernel_..., ncclDevKernel_..., ncclSymkDevKernel_...), RCCL
    # and MSCCL among them.
    _family(r"nccl|rccl|mscclKernel"),
    _family(r"mscclpp"),  # MSCCL++: namespace mscclpp
    # vLLM and SGLang (csrc/custom_all_reduce.cuh), aiter: cross_device_reduce_1stage, _2stage; quick all-reduce.
    _family(r"cross_device_reduce|allreduce_prototype_(?:one|two)shot", "all_reduce"),
    # FlashInfer, TensorRT-LLM and aiter: all-reduces fused with the norm that follows.
    _family(r"all_?reduce_fusion_kernel|lamport_style_one_shot_all_reduce|moe_finalize_all_?reduce", "all_reduce"),
    # torch symmetric memory (CUDASymmetricMemoryOps.cu), torch's earlier IntraNodeComm, FBGEMM's, TensorRT-LLM's.
    _family(r"(?:one|two)_?shot_?all_?reduce|hybridCubeMeshAllReduce|multimem_(?:one_shot_)?all_?reduce", "all_reduce"),
    _family(r"multimem_all_?gather", "all_gather"),
    _family(r"multimem_(?:one_shot_)?reduce", "reduce"),
    _family(r"all_to_all_vdev|allToAllV", "all_to_all"),
    _family(r"nvshmem"),  # nvshmemi_..., nvshmem_..., and torch's kernels over it
    # DeepEP (csrc/kernels): intranode::, internode::, internode_ll:: with dispatch and combine; PPLX likewise.
    _family(
        r"deep_?ep::|\b(?:intranode|internode|internode_ll)::(?:cached_)?(?:notify_)?(?:dispatch|combine)", "all_to_all"
    ),
    _family(r"pplx::all_?to_?all", "all_to_all"),
    _family(r"oneccl|\boneapi::ccl|(?<![a-z])ccl_(?:all|reduce|broad|send|recv)"),  # oneCCL
    _family(r"(?<![a-z])(?:hccl|cncl|mccl|bkcl|xccl)"),  # Ascend, Gaudi, Cambricon, MTIA, Kunlun
    _family(r"userbuffers_"),  # Transformer Engine
)

# TorchInductor names a fused Triton kernel by the operators that it replaces, collectives before or behind it among them.
_INDUCTOR = re.compile(r"^triton_[a-z_]+?_fused_")
_ANY_FAMILY = re.compile("|".join(f"(?:{family.pattern.pattern})" for family in FAMILIES), re.IGNORECASE)
# Within one device it is a warp or a block that "all-reduces".
_COLLECTIVE = re.compile(
    r"(?<!warp)(?<!block)(?<!warp_)(?<!block_)all_?reduce|reduce_?scatter|all_?gather|all_?to_?all|nvshmem",
    re.IGNORECASE,
)
_MAY_COMMUNICATE = re.compile(r"reduce|gather", re.IGNORECASE)
# Reductions and gathers within one device: torch's own, CUB, Thrust, BLAS, DNN, Triton's by Inductor, and general words.
_COMPUTES = re.compile(
    r"at::|at_cuda_detail|\bcub::|thrust|cutlass|cublas|cudnn|hipcub|rocprim|rocblas|miopen|Cijk_|onednn|dnnl|triton_|"
    r"split_?k|reduce_1Block|reduction|soft_?max|norm|embedding|index|fbgemm|gemm|gemv|flash|attention|optimizer|adam|loss|"
    r"warp_?(?:all_?)?reduce|block_?(?:all_?)?reduce",
    re.IGNORECASE,
)


@lru_cache(maxsize=4096)
def family_of(name: str) -> Family | None:
    """The library that a kernel's name belongs to; None for one that is not known to communicate."""
    if not _ANY_FAMILY.search(name) or _INDUCTOR.match(name):
        return None
    return next(family for family in FAMILIES if family.pattern.search(name))


def is_collective_kernel(name: str) -> bool:
    """Whether a kernel of this name is a collective's."""
    return family_of(name) is not None


def may_communicate(name: str) -> bool:
    """Whether a kernel that is of no known library looks by its name as if it communicated."""
    if family_of(name) is not None or _INDUCTOR.match(name):
        return False
    return bool(_COLLECTIVE.search(name) or (_MAY_COMMUNICATE.search(name) and not _COMPUTES.search(name)))
