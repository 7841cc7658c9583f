// libcublas and libcublasLt without mathematics: a product of matrices is one kernel that takes 2 m n k FLOP.
//
// Declarations: cublas_v2.h and cublasLt.h of nvidia-cublas. Caller: libtorch_cuda (CUDABlas.cpp, CublasHandlePool.cpp).
// cuda_fp16.h and its like need CCCL's headers, which no wheel of torch's has: their types are only named here.
#define __CUDA_FP16_H__
#define __CUDA_BF16_H__
#define __CUDA_FP8_H__
struct __half;
struct __nv_bfloat16;
#include <cublasLt.h>
#include <cublas_v2.h>

#include <cmath>
#include <cstring>

#include "library_kernels.h"

using namespace vgpu;

struct cublasContext {
    cudaStream_t stream;
    cublasMath_t math;
    cublasPointerMode_t pointer_mode;
};

namespace {

const char *const SINGLE = "ampere_sgemm_128x64_tn";
const char *const DOUBLE = "ampere_dgemm_64x64_tn";
const char *const HALF = "ampere_fp16_s16816gemm_fp16_128x64_ldg8_f2f_tn";
const char *const SINGLE_LT = "cutlass_80_simt_sgemm_128x64_8x5_tn_align1";

struct Layout {  // of a matrix: what cublasLtMatrixLayout_t points to
    cudaDataType type;
    uint64_t rows, columns;
    int32_t batches;
};

cublasStatus_t multiply(cudaStream_t stream, const char *name, double m, double n, double k, double batches = 1) {
    bool done = launch_library_kernel(stream, name, 2 * m * n * k * batches) == cudaSuccess;
    return done ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_EXECUTION_FAILED;
}

const char *gemm_of(cudaDataType type) {
    if (type == CUDA_R_32F) return SINGLE;
    return type == CUDA_R_64F ? DOUBLE : HALF;
}

}  // namespace

extern "C" {

cublasStatus_t cublasCreate_v2(cublasHandle_t *handle) {
    *handle = new cublasContext{};
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasDestroy_v2(cublasHandle_t handle) {
    delete handle;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetStream_v2(cublasHandle_t handle, cudaStream_t stream) {
    handle->stream = stream;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasGetStream_v2(cublasHandle_t handle, cudaStream_t *stream) {
    *stream = handle->stream;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetMathMode(cublasHandle_t handle, cublasMath_t mode) {
    handle->math = mode;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasGetMathMode(cublasHandle_t handle, cublasMath_t *mode) {
    *mode = handle->math;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetPointerMode_v2(cublasHandle_t handle, cublasPointerMode_t mode) {
    handle->pointer_mode = mode;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasGetPointerMode_v2(cublasHandle_t handle, cublasPointerMode_t *mode) {
    *mode = handle->pointer_mode;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasGetVersion_v2(cublasHandle_t, int *version) {
    *version = 130000;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSgemm_v2(
    cublasHandle_t handle, cublasOperation_t, cublasOperation_t, int m, int n, int k, const float *, const float *, int,
    const float *, int, const float *, float *, int) {
    return multiply(handle->stream, SINGLE, m, n, k);
}

cublasStatus_t cublasDgemm_v2(
    cublasHandle_t handle, cublasOperation_t, cublasOperation_t, int m, int n, int k, const double *, const double *, int,
    const double *, int, const double *, double *, int) {
    return multiply(handle->stream, DOUBLE, m, n, k);
}

cublasStatus_t cublasSgemmEx(
    cublasHandle_t handle, cublasOperation_t, cublasOperation_t, int m, int n, int k, const float *, const void *,
    cudaDataType type, int, const void *, cudaDataType, int, const float *, void *, cudaDataType, int) {
    return multiply(handle->stream, gemm_of(type), m, n, k);
}

cublasStatus_t cublasGemmEx(
    cublasHandle_t handle, cublasOperation_t, cublasOperation_t, int m, int n, int k, const void *, const void *,
    cudaDataType type, int, const void *, cudaDataType, int, const void *, void *, cudaDataType, int, cublasComputeType_t,
    cublasGemmAlgo_t) {
    return multiply(handle->stream, gemm_of(type), m, n, k);
}

cublasStatus_t cublasSgemmStridedBatched(
    cublasHandle_t handle, cublasOperation_t, cublasOperation_t, int m, int n, int k, const float *, const float *, int,
    long long, const float *, int, long long, const float *, float *, int, long long, int batches) {
    return multiply(handle->stream, SINGLE, m, n, k, batches);
}

cublasStatus_t cublasGemmStridedBatchedEx(
    cublasHandle_t handle, cublasOperation_t, cublasOperation_t, int m, int n, int k, const void *, const void *,
    cudaDataType type, int, long long, const void *, cudaDataType, int, long long, const void *, void *, cudaDataType, int,
    long long, int batches, cublasComputeType_t, cublasGemmAlgo_t) {
    return multiply(handle->stream, gemm_of(type), m, n, k, batches);
}

cublasStatus_t cublasSgemv_v2(
    cublasHandle_t handle, cublasOperation_t, int m, int n, const float *, const float *, int, const float *, int,
    const float *, float *, int) {
    return multiply(handle->stream, "gemv2T_kernel_val", m, n, 1);
}

cublasStatus_t cublasSdot_v2(cublasHandle_t handle, int n, const float *, int, const float *, int, float *) {
    return multiply(handle->stream, "dot_kernel", n, 1, 1);
}

// cuBLASLt: torch's linear layers. A layout keeps its size, for the time.

cublasStatus_t cublasLtCreate(cublasLtHandle_t *handle) {
    *handle = (cublasLtHandle_t)1;
    return CUBLAS_STATUS_SUCCESS;
}

size_t cublasLtGetVersion() { return 130000; }

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *description, cublasComputeType_t, cudaDataType_t) {
    *description = (cublasLtMatmulDesc_t)calloc(1, sizeof(cublasLtMatmulDescOpaque_t));
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t description) {
    free(description);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *preference) {
    *preference = (cublasLtMatmulPreference_t)calloc(1, sizeof(cublasLtMatmulPreferenceOpaque_t));
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
    free(preference);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutCreate(
    cublasLtMatrixLayout_t *layout, cudaDataType type, uint64_t rows, uint64_t columns, int64_t) {
    *layout = (cublasLtMatrixLayout_t) new Layout{type, rows, columns, 1};
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutSetAttribute(
    cublasLtMatrixLayout_t layout, cublasLtMatrixLayoutAttribute_t attribute, const void *value, size_t bytes) {
    auto *own = (Layout *)layout;
    if (attribute == CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT && bytes == sizeof own->batches) memcpy(&own->batches, value, bytes);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
    delete (Layout *)layout;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(
    cublasLtHandle_t, cublasLtMatmulDesc_t, cublasLtMatrixLayout_t, cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
    cublasLtMatrixLayout_t, cublasLtMatmulPreference_t, int, cublasLtMatmulHeuristicResult_t results[], int *count) {
    results[0] = {};
    *count = 1;  // torch refuses fewer
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(
    cublasLtHandle_t, cublasLtMatmulDesc_t, const void *, const void *, cublasLtMatrixLayout_t left, const void *,
    cublasLtMatrixLayout_t right, const void *, const void *, cublasLtMatrixLayout_t, void *, cublasLtMatrixLayout_t result,
    const cublasLtMatmulAlgo_t *, void *, size_t, cudaStream_t stream) {
    auto &a = *(Layout *)left, &b = *(Layout *)right, &d = *(Layout *)result;
    double inner = sqrt((double)a.rows * a.columns * b.rows * b.columns / ((double)d.rows * d.columns));  // either transposed
    const char *name = d.type == CUDA_R_32F ? SINGLE_LT : HALF;
    return multiply(stream, name, d.rows, d.columns, inner, d.batches);
}

}  // extern "C"
