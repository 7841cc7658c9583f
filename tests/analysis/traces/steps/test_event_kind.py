"""Kernels by their names: communication of which library, computation, or a name that leaves it
open.
"""

import pytest

from dpscope.analysis.traces.steps.event_kind import (
    collective_kind,
    is_collective_kernel,
    may_communicate,
)

COMMUNICATES = {
    "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)": "all_reduce",
    "ncclDevKernel_AllReduce_Sum_f32_NVLS_TREE_SIMPLE(ncclDevKernelArgsStorage<4096ul>)": "all_reduce",
    "ncclSymkDevKernel_AllReduce_AGxLLMC_R_sum_f32(ncclSymkDevWorkArgs4K)": "all_reduce",
    "ncclDevKernel_Generic": None,
    "void mscclpp::allreduce<float>(float*)": "all_reduce",
    "void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>(vllm::RankData*, vllm::RankSignals)": "all_reduce",
    "void aiter::cross_device_reduce_2stage<__half, 4>(aiter::RankData*)": "all_reduce",
    "void quickreduce::allreduce_prototype_twoshot<quickreduce::AllReduceTwoshot>": "all_reduce",
    "triton_one_shot_all_reduce_kernel": "all_reduce",  # somebody's own, by hand
    "allreduce_fusion_kernel_oneshot_lamport<(int)8>": "all_reduce",
    "void (anonymous namespace)::multimem_all_reduce_kernel<c10::BFloat16, 16>(c10::BFloat16*)": "all_reduce",
    "void (anonymous namespace)::multimem_one_shot_all_reduce_kernel<float, 16>(float*)": "all_reduce",
    "void (anonymous namespace)::two_shot_all_reduce_kernel_inplace<float, 16, 8>(float**)": "all_reduce",
    "void (anonymous namespace)::multimem_all_gather_kernel<16>(char*)": "all_gather",
    "void tensorrt_llm::kernels::oneShotAllReduceKernel<__half, 8>": "all_reduce",
    "void deep_ep::intranode::dispatch<8, 768, 8192>(int4*)": "all_to_all",
    "void deep_ep::internode_ll::combine<true, 7168, 9>(void*)": "all_to_all",
    "oneccl_allreduce_small_fp16": "all_reduce",
    "c10d::symmetric_memory::barrier_kernel(unsigned int**, int, int, int, unsigned long)": "barrier",
    "c10d::symmetric_memory::put_signal_kernel(unsigned int**, int, int, int, int, unsigned long)": "send",
    "c10d::symmetric_memory::wait_signal_kernel(unsigned int**, int, int, int, int, unsigned long)": "recv",
    "c10d::symmetric_memory::barrierKernel": "barrier",  # XPU's
    "nvshmemi_proxy_quiet_entrypoint": None,
}
OPEN = (
    "my_custom_allreduce_kernel",
    "fused_norm_all_reduce_v2",
    "fast_gather(void*)",
    "ring_reduce_f16",
    "alltoall_kernel",
    "gemm_reduce_scatter_sm90",
)


@pytest.mark.parametrize(("name", "kind"), COMMUNICATES.items())
def test_known_libraries(name: str, kind: str | None) -> None:
    assert is_collective_kernel(name)
    assert not may_communicate(name)
    assert collective_kind(name) == kind


@pytest.mark.parametrize("name", OPEN)
def test_names_that_leave_it_open(name: str) -> None:
    assert not is_collective_kernel(name)
    assert may_communicate(name)
