"""Names of NCCL's kernels by generation, and of the operators that launch them.

From NCCL's generated device code: 2.8 (`ncclAllReduceRingLLKernel_...`), 2.12 (`ncclKernel_...`), 2.19 and later
(`ncclDevKernel_...`), 2.27's symmetric-memory kernels, and RCCL's generic one.
"""

from typing import Literal

Generation = Literal["nccl_2_8", "nccl_2_12", "nccl_2_19", "symmetric", "rccl"]

_OLD = "(ncclWorkElem)"
_WORK = "(ncclDevComm*, unsigned long, ncclWork*)"
_STORAGE = "(ncclDevKernelArgsStorage<4096ul>)"
_SYMMETRIC = "(ncclSymkDevWorkArgs4K)"
_GENERIC = "ncclDevKernel_Generic_4" + _STORAGE

_RECENT = {
    "all_reduce": "ncclDevKernel_AllReduce_Sum_f32_RING_LL" + _STORAGE,
    "broadcast": "ncclDevKernel_Broadcast_RING_LL" + _STORAGE,
    "all_gather": "ncclDevKernel_AllGather_RING_LL" + _STORAGE,
    "reduce_scatter": "ncclDevKernel_ReduceScatter_Sum_f32_RING_LL" + _STORAGE,
    "all_to_all": "ncclDevKernel_SendRecv" + _STORAGE,
    "send": "ncclDevKernel_SendRecv" + _STORAGE,
    "recv": "ncclDevKernel_SendRecv" + _STORAGE,
}
KERNEL_NAMES: dict[str, dict[str, str]] = {
    "nccl_2_8": {
        "all_reduce": "ncclAllReduceRingLLKernel_sum_f32" + _OLD,
        "broadcast": "ncclBroadcastRingLLKernel_copy_i8" + _OLD,
        "all_gather": "ncclAllGatherRingLLKernel_copy_i8" + _OLD,
        "reduce_scatter": "ncclReduceScatterRingLLKernel_sum_f32" + _OLD,
        "all_to_all": "ncclSendRecvKernel_copy_i8" + _OLD,
    },
    "nccl_2_12": {
        "all_reduce": "ncclKernel_AllReduce_RING_LL_Sum_float" + _WORK,
        "broadcast": "ncclKernel_Broadcast_RING_LL_Sum_int8_t" + _WORK,
        "all_gather": "ncclKernel_AllGather_RING_LL_Sum_int8_t" + _WORK,
        "reduce_scatter": "ncclKernel_ReduceScatter_RING_LL_Sum_float" + _WORK,
        "all_to_all": "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t" + _WORK,
    },
    "nccl_2_19": _RECENT,
    "symmetric": _RECENT
    | {
        "all_reduce": "ncclSymkDevKernel_AllReduce_RSxLD_AGxST_sum_f32" + _SYMMETRIC,
        "all_gather": "ncclSymkDevKernel_AllGather_ST" + _SYMMETRIC,
        "reduce_scatter": "ncclSymkDevKernel_ReduceScatter_LD_sum_f32" + _SYMMETRIC,
    },
    "rccl": dict.fromkeys(_RECENT, _GENERIC),
}

# By kind: the c10d operator, the `nccl:` range inside it, and the name in the kernel's metadata.
OPERATORS: dict[str, tuple[str, str, str]] = {
    "all_reduce": ("c10d::allreduce_", "nccl:all_reduce", "allreduce"),
    "broadcast": ("c10d::broadcast_", "nccl:broadcast", "broadcast"),
    "all_gather": ("c10d::_allgather_base_", "nccl:_all_gather_base", "_allgather_base"),
    "reduce_scatter": ("c10d::_reduce_scatter_base_", "nccl:_reduce_scatter_base", "_reduce_scatter_base"),
    "all_to_all": ("c10d::alltoall_base_", "nccl:all_to_all", "all_to_all"),
    "send": ("c10d::send", "nccl:send", "send"),
    "recv": ("c10d::recv_", "nccl:recv", "recv"),
}


def all_reduce_of_two(elements: int, **more: object) -> dict[str, object]:
    """What is recorded of an all-reduce of ranks 0 and 1."""
    sizes = {"In msg nelems": elements, "Out msg nelems": elements, "Group size": 2, "dtype": "Float"}
    group = {"Process Group Name": "0", "Process Group Ranks": "[0, 1]"}
    return {"Collective name": OPERATORS["all_reduce"][2], **sizes, **group, **more}
