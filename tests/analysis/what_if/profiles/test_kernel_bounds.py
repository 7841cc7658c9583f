"""Kernels as real traces name them."""

import pytest

from dpscope.analysis.what_if.profiles.kernel_bounds import kernel_bounds
from dpscope.profiling.machine.gpu_speed import FP32, HALF, HOST_LINK, MEMORY, TF32


@pytest.mark.parametrize(
    ("name", "bound"),
    [
        ("ampere_sgemm_128x64_tn", FP32),
        ("sm80_xmma_fprop_implicit_gemm_tf32f32_tf32f32_f32_nhwckrsc_nchw_tilesize128x128x16", TF32),
        ("cutlass_80_tensorop_s1688gemm_128x128_16x5_tn_align4", TF32),
        ("ampere_fp16_s16816gemm_fp16_128x128_ldg8_f2f_stages_32x5_tn", HALF),
        ("volta_fp16_s884cudnn_fp16_256x64_ldg8_relu_f2f_exp_small_nhwc_tn_v1", HALF),
        ("sm80_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64", HALF),
        ("volta_scudnn_128x64_relu_interior_nn_v1", FP32),
        ("void cudnn::bn_fw_tr_1C11_kernel_NCHW<float, float>", MEMORY),
        ("void cudnn::ops::nchwToNhwcKernel<__half, __half, float>", MEMORY),
        ("void at::native::vectorized_elementwise_kernel<4, at::native::AddFunctor<float>>", MEMORY),
        ("Memcpy HtoD (Pinned -> Device)", HOST_LINK),
        ("Memcpy DtoD (Device -> Device)", MEMORY),
    ],
)
def test_names_of_kernels(name: str, bound: int) -> None:
    assert kernel_bounds([name]).tolist() == [bound]
