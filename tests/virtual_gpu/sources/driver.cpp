// libcuda: the few functions of the driver that torch and Triton call themselves.
//
// Declarations: cuda.h of nvidia-cuda-runtime. Callers: libcaffe2_nvrtc (lazyNVRTC; cuDevicePrimaryCtxGetState in every profile and
// backward pass), Triton's driver.c and the launchers it compiles (modules and launches).
#include <cuda.h>
#include <cupti_driver_cbid.h>
#include <dlfcn.h>

#include <cstdio>
#include <cstring>
#include <string>

#include "errors.h"
#include "profiler.h"

#undef cuGetProcAddress
using namespace vgpu;

namespace {

CUcontext context_of(int device) { return (CUcontext)(uintptr_t)(device + 1); }

CUresult launch(uint32_t callback, CUfunction function, dim3 grid, dim3 block, CUstream handle) {
    auto *name = (const char *)function;
    Stream *stream = stream_of((cudaStream_t)handle);
    delay_host(name);
    Call call(callback, true);
    if (cudaError_t error = launch_error(stream)) return (CUresult)failed(error);
    enqueue_kernel(stream, {name, node().kernel_ns, grid, block, {}});
    return CUDA_SUCCESS;
}

}  // namespace

extern "C" {

CUresult cuInit(unsigned) { return visible_devices().empty() ? CUDA_ERROR_NO_DEVICE : CUDA_SUCCESS; }

CUresult cuDriverGetVersion(int *version) {
    *version = 13000;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetCount(int *count) {
    *count = (int)visible_devices().size();
    return CUDA_SUCCESS;
}

CUresult cuDeviceGet(CUdevice *device, int ordinal) {
    *device = ordinal;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetName(char *text, int size, CUdevice device) {
    snprintf(text, size, "%s", visible_device(device).name.c_str());
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device) {
    return (CUresult)cudaDeviceGetAttribute(value, (cudaDeviceAttr)attribute, device);
}

CUresult cuDevicePrimaryCtxGetState(CUdevice, unsigned *flags, int *active) {
    *flags = 0;
    *active = 1;
    return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) {
    *context = context_of(device);
    return CUDA_SUCCESS;
}

CUresult cuCtxGetCurrent(CUcontext *context) {
    *context = context_of(current_device());
    return CUDA_SUCCESS;
}

CUresult cuCtxSetCurrent(CUcontext) { return CUDA_SUCCESS; }

CUresult cuCtxGetDevice(CUdevice *device) {
    *device = current_device();
    return CUDA_SUCCESS;
}

CUresult cuGetErrorString(CUresult, const char **text) {
    *text = "error of the virtual driver";
    return CUDA_SUCCESS;
}

CUresult cuGetErrorName(CUresult, const char **name) {
    *name = "CUDA_ERROR_VIRTUAL";
    return CUDA_SUCCESS;
}

CUresult cuGetProcAddress_v2(const char *name, void **function, int, cuuint64_t, CUdriverProcAddressQueryResult *result) {
    *function = dlsym(RTLD_DEFAULT, (std::string(name) + "_v2").c_str());
    if (!*function) *function = dlsym(RTLD_DEFAULT, name);
    if (result) *result = *function ? CU_GET_PROC_ADDRESS_SUCCESS : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    return *function ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

// Libraries with a real runtime inside (cuSOLVER, cuFFT, cuSPARSE) stop here, and torch raises their error.
CUresult cuGetExportTable(const void **, const CUuuid *) { return CUDA_ERROR_NOT_FOUND; }

// torch registers a callback for the driver's log (CUDAHooks.cpp).
CUresult cuLogsRegisterCallback(CUlogsCallback, void *, CUlogsCallbackHandle *handle) {
    if (handle) *handle = (CUlogsCallbackHandle)1;
    return CUDA_SUCCESS;
}

CUresult cuLogsUnregisterCallback(CUlogsCallbackHandle) { return CUDA_SUCCESS; }

// A kernel of Triton or of jiterator is its name.

CUresult cuModuleLoadData(CUmodule *module, const void *) {
    *module = (CUmodule)1;
    return CUDA_SUCCESS;
}

CUresult cuModuleLoad(CUmodule *module, const char *) { return cuModuleLoadData(module, nullptr); }

CUresult cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned, CUjit_option *, void **) {
    return cuModuleLoadData(module, image);
}

CUresult cuModuleUnload(CUmodule) { return CUDA_SUCCESS; }

CUresult cuModuleGetFunction(CUfunction *function, CUmodule, const char *name) {
    *function = (CUfunction)strdup(name);
    return CUDA_SUCCESS;
}

CUresult cuFuncGetAttribute(int *value, CUfunction_attribute, CUfunction) {
    *value = 0;
    return CUDA_SUCCESS;
}

CUresult cuFuncSetAttribute(CUfunction, CUfunction_attribute, int) { return CUDA_SUCCESS; }
CUresult cuFuncSetCacheConfig(CUfunction, CUfunc_cache) { return CUDA_SUCCESS; }

CUresult cuPointerGetAttribute(void *value, CUpointer_attribute attribute, CUdeviceptr pointer) {
    if (attribute != CU_POINTER_ATTRIBUTE_DEVICE_POINTER) return CUDA_ERROR_NOT_SUPPORTED;  // Triton asks for this alone
    *(CUdeviceptr *)value = pointer;
    return CUDA_SUCCESS;
}

CUresult cuLaunchKernel(
    CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y,
    unsigned block_z, unsigned, CUstream stream, void **, void **) {
    dim3 grid{grid_x, grid_y, grid_z}, block{block_x, block_y, block_z};
    return launch(CUPTI_DRIVER_TRACE_CBID_cuLaunchKernel, function, grid, block, stream);
}

CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction function, void **, void **) {
    dim3 grid{config->gridDimX, config->gridDimY, config->gridDimZ};
    dim3 block{config->blockDimX, config->blockDimY, config->blockDimZ};
    return launch(CUPTI_DRIVER_TRACE_CBID_cuLaunchKernelEx, function, grid, block, config->hStream);
}

}  // extern "C"
