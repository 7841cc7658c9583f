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
COMPUTES = (
    "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float> >(at::native::ReduceOp<float>)",
    "void at::native::vectorized_gather_kernel<16, long>(char*, char*, long*)",
    "void cub::DeviceReduceSingleTileKernel<cub::Policy600>",
    "void splitKreduce_kernel<32, 16, int, float>(cublasSplitKParams<float>)",
    "void cublasLt::splitKreduce_kernel<32>",
    "triton_red_fused_native_layer_norm_0",
    # Inductor's names hold the operators that it fused
    "triton_poi_fused_add_all_reduce_wait_tensor_3",
    "triton_red_fused__to_copy_all_gather_into_tensor_mean_1",
    "triton_per_fused_one_shot_all_reduce_native_layer_norm_0",
    "void reduce_1Block_kernel<float, 128, 7>(float const*)",
    "void layer_norm_block_all_reduce<float>",
    "ampere_sgemm_128x64_tn",
    "void somebody::barrier_kernel<4>(int*)",  # may be of one device
    "void at::native::put_kernel<float>(float*)",
    "Cijk_Ailk_Bljk_BBS_BH_MT128x128x32",
)
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


@pytest.mark.parametrize("name", COMPUTES)
def test_reductions_within_a_device(name: str) -> None:
    assert not is_collective_kernel(name)
    assert not may_communicate(name)


@pytest.mark.parametrize("name", OPEN)
def test_names_that_leave_it_open(name: str) -> None:
    assert not is_collective_kernel(name)
    assert may_communicate(name)
