// libcudnn without mathematics: a convolution or a batch normalisation is one kernel.
//
// Declarations: cudnn.h of nvidia-cudnn-cu13. Callers in libtorch_cuda: Conv_v8.cpp (through cudnn-frontend, by backend descriptors),
// BatchNorm.cpp, Handle.cpp, Descriptors.cpp. Recurrent layers and CTC are not there: their calls are not supported.
#include <cudnn.h>

#include <map>
#include <numeric>
#include <vector>

#include "library_kernels.h"

using namespace vgpu;

struct cudnnContext {
    cudaStream_t stream;
};

namespace {

using Sizes = std::vector<int64_t>;

double elements(const Sizes &sizes) { return std::accumulate(sizes.begin(), sizes.end(), 1.0, std::multiplies<>()); }

cudnnStatus_t launch(cudnnHandle_t handle, const char *name, double flop, double bytes) {
    bool done = launch_library_kernel(handle->stream, name, flop, bytes) == cudaSuccess;
    return done ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_EXECUTION_FAILED;
}

// A backend descriptor of any type. A plan is made of an engine, that of a graph, that of an operation: all of them carry its kernel.
struct Descriptor {
    const char *kernel = nullptr;
    double flop = 0;
    Sizes sizes;             // of a tensor
    Sizes filter, results;  // of an operation
};

const char *kernel_of(cudnnBackendDescriptorType_t type) {
    switch (type) {
    case CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR:
        return "sm80_xmma_fprop_implicit_gemm_f32f32_f32f32_f32_nchwkcrs_nchw_tilesize128x64x8_stage3_warpsize2x2x1_g1_ffma_"
               "aligna4_alignc4_execute_kernel__5x_cudnn";
    case CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR:
        return "sm80_xmma_dgrad_implicit_gemm_indexed_f32f32_f32f32_f32_nchwkcrs_nchw_tilesize128x64x8_stage3_warpsize2x2x1_g1_"
               "ffma_aligna4_alignc4_execute_kernel__5x_cudnn";
    case CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR:
        return "sm80_xmma_wgrad_implicit_gemm_indexed_f32f32_f32f32_f32_nchwkcrs_nchw_tilesize128x64x8_stage3_warpsize2x2x1_g1_"
               "ffma_aligna4_alignc4_execute_kernel__5x_cudnn";
    default: return nullptr;
    }
}

bool names_filter(cudnnBackendAttributeName_t name) {
    return name == CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W || name == CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W ||
           name == CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW;
}

bool names_results(cudnnBackendAttributeName_t name) {
    return name == CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y || name == CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY ||
           name == CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY;
}

void take_part(Descriptor &whole, cudnnBackendAttributeName_t name, const Descriptor &part) {
    if (names_filter(name)) whole.filter = part.sizes;
    if (names_results(name)) whole.results = part.sizes;
    bool complete = !whole.filter.empty() && !whole.results.empty() && whole.filter[0] > 0;
    // Each result is a sum over the filter's weights of one output channel.
    if (complete) whole.flop = 2 * elements(whole.results) * elements(whole.filter) / (double)whole.filter[0];
    if (whole.kernel || !part.kernel) return;
    whole.kernel = part.kernel;
    whole.flop = part.flop;
}

}  // namespace

struct cudnnTensorStruct {
    Sizes sizes;
};
struct cudnnFilterStruct {};
struct cudnnConvolutionStruct {};
struct cudnnActivationStruct {};

namespace {

double bytes_of(cudnnTensorDescriptor_t tensor) { return 4 * elements(tensor->sizes); }

}  // namespace

extern "C" {

cudnnStatus_t cudnnCreate(cudnnHandle_t *handle) {
    *handle = new cudnnContext{};
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnDestroy(cudnnHandle_t handle) {
    delete handle;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream) {
    handle->stream = stream;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnGetStream(cudnnHandle_t handle, cudaStream_t *stream) {
    *stream = handle->stream;
    return CUDNN_STATUS_SUCCESS;
}

// torch compares these with the version it was built with.
size_t cudnnGetVersion() { return CUDNN_VERSION; }
size_t cudnnGetCudartVersion() { return 13000; }

cudnnStatus_t cudnnGetProperty(libraryPropertyType part, int *value) {
    static const std::map<libraryPropertyType, int> parts = {
        {MAJOR_VERSION, CUDNN_MAJOR}, {MINOR_VERSION, CUDNN_MINOR}, {PATCH_LEVEL, CUDNN_PATCHLEVEL}};
    *value = parts.at(part);
    return CUDNN_STATUS_SUCCESS;
}

const char *cudnnGetErrorString(cudnnStatus_t status) {
    switch (status) {
    case CUDNN_STATUS_SUCCESS: return "CUDNN_STATUS_SUCCESS";
    case CUDNN_STATUS_NOT_SUPPORTED: return "CUDNN_STATUS_NOT_SUPPORTED";
    case CUDNN_STATUS_EXECUTION_FAILED: return "CUDNN_STATUS_EXECUTION_FAILED";
    default: return "error of the virtual cuDNN";
    }
}

void cudnnGetLastErrorString(char *text, size_t size) {
    if (size) *text = 0;
}

cudnnStatus_t cudnnCreateTensorDescriptor(cudnnTensorDescriptor_t *tensor) {
    *tensor = new cudnnTensorStruct{};
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnSetTensorNdDescriptor(cudnnTensorDescriptor_t tensor, cudnnDataType_t, int count, const int sizes[], const int[]) {
    tensor->sizes.assign(sizes, sizes + count);
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnDestroyTensorDescriptor(cudnnTensorDescriptor_t tensor) {
    delete tensor;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnCreateActivationDescriptor(cudnnActivationDescriptor_t *activation) {
    *activation = new cudnnActivationStruct{};
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnSetActivationDescriptor(cudnnActivationDescriptor_t, cudnnActivationMode_t, cudnnNanPropagation_t, double) {
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnDestroyActivationDescriptor(cudnnActivationDescriptor_t activation) {
    delete activation;
    return CUDNN_STATUS_SUCCESS;
}

// Batch normalisation: reads and writes its tensors once.

cudnnStatus_t cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize(
    cudnnHandle_t, cudnnBatchNormMode_t, cudnnBatchNormOps_t, const cudnnTensorDescriptor_t, const cudnnTensorDescriptor_t,
    const cudnnTensorDescriptor_t, const cudnnTensorDescriptor_t, const cudnnActivationDescriptor_t, size_t *bytes) {
    *bytes = 0;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnGetBatchNormalizationBackwardExWorkspaceSize(
    cudnnHandle_t, cudnnBatchNormMode_t, cudnnBatchNormOps_t, const cudnnTensorDescriptor_t, const cudnnTensorDescriptor_t,
    const cudnnTensorDescriptor_t, const cudnnTensorDescriptor_t, const cudnnTensorDescriptor_t, const cudnnTensorDescriptor_t,
    const cudnnActivationDescriptor_t, size_t *bytes) {
    *bytes = 0;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnGetBatchNormalizationTrainingExReserveSpaceSize(
    cudnnHandle_t, cudnnBatchNormMode_t, cudnnBatchNormOps_t, const cudnnActivationDescriptor_t, const cudnnTensorDescriptor_t,
    size_t *bytes) {
    *bytes = 0;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBatchNormalizationForwardTrainingEx(
    cudnnHandle_t handle, cudnnBatchNormMode_t, cudnnBatchNormOps_t, const void *, const void *, const cudnnTensorDescriptor_t input,
    const void *, const cudnnTensorDescriptor_t, const void *, const cudnnTensorDescriptor_t, void *, const cudnnTensorDescriptor_t,
    const void *, const void *, double, void *, void *, double, void *, void *, cudnnActivationDescriptor_t, void *, size_t, void *,
    size_t) {
    const char *name = "void cudnn::bn_fw_tr_1C11_kernel_NCHW<float, float, int, 512, true, 1, true>()";
    return launch(handle, name, 0, 2 * bytes_of(input));
}

cudnnStatus_t cudnnBatchNormalizationForwardInference(
    cudnnHandle_t handle, cudnnBatchNormMode_t, const void *, const void *, const cudnnTensorDescriptor_t input, const void *,
    const cudnnTensorDescriptor_t, void *, const cudnnTensorDescriptor_t, const void *, const void *, const void *, const void *,
    double) {
    return launch(handle, "void cudnn::bn_fw_inf_1C11_kernel_NCHW<float, float, true, 1>()", 0, 2 * bytes_of(input));
}

cudnnStatus_t cudnnBatchNormalizationBackwardEx(
    cudnnHandle_t handle, cudnnBatchNormMode_t, cudnnBatchNormOps_t, const void *, const void *, const void *, const void *,
    const cudnnTensorDescriptor_t input, const void *, const cudnnTensorDescriptor_t, const void *, const cudnnTensorDescriptor_t,
    const void *, const cudnnTensorDescriptor_t, void *, const cudnnTensorDescriptor_t, void *, const cudnnTensorDescriptor_t,
    const void *, const void *, void *, void *, double, const void *, const void *, cudnnActivationDescriptor_t, void *, size_t, void *,
    size_t) {
    const char *name = "void cudnn::bn_bw_1C11_kernel_new<float, float, float2, 512, true, 1>()";
    return launch(handle, name, 0, 3 * bytes_of(input));
}

// Convolutions: cudnn-frontend makes descriptors of one another, and executes a plan.

cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t type, cudnnBackendDescriptor_t *descriptor) {
    auto *made = new Descriptor{};
    made->kernel = kernel_of(type);
    *descriptor = made;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t descriptor) {
    delete (Descriptor *)descriptor;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t) { return CUDNN_STATUS_SUCCESS; }

cudnnStatus_t cudnnBackendSetAttribute(
    cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, int64_t count,
    const void *values) {
    auto &own = *(Descriptor *)descriptor;
    if (name == CUDNN_ATTR_TENSOR_DIMENSIONS) own.sizes.assign((int64_t *)values, (int64_t *)values + count);
    if (type != CUDNN_TYPE_BACKEND_DESCRIPTOR) return CUDNN_STATUS_SUCCESS;
    for (int64_t i = 0; i < count; i++)
        if (const Descriptor *part = ((Descriptor *const *)values)[i]) take_part(own, name, *part);
    return CUDNN_STATUS_SUCCESS;
}

// One engine is offered for every graph; it wants no workspace and has no notes.
cudnnStatus_t cudnnBackendGetAttribute(
    const cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, int64_t wanted,
    int64_t *count, void *values) {
    auto &own = *(const Descriptor *)descriptor;
    bool offered = name == CUDNN_ATTR_ENGINEHEUR_RESULTS || name == CUDNN_ATTR_ENGINECFG_ENGINE;
    bool number = type == CUDNN_TYPE_INT64 && wanted && values;
    if (count) *count = offered || number ? 1 : 0;
    if (number) *(int64_t *)values = 0;
    if (!offered || type != CUDNN_TYPE_BACKEND_DESCRIPTOR || !wanted || !values) return CUDNN_STATUS_SUCCESS;
    Descriptor &engine = **(Descriptor **)values;
    engine.kernel = own.kernel;
    engine.flop = own.flop;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendExecute(cudnnHandle_t handle, cudnnBackendDescriptor_t plan, cudnnBackendDescriptor_t) {
    auto &own = *(Descriptor *)plan;
    return launch(handle, own.kernel ? own.kernel : "cudnn_graph_kernel", own.flop, 0);
}

}  // extern "C"
