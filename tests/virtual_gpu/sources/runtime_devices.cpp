// libcudart: devices, their properties, versions and errors.
//
// Declarations: cuda_runtime_api.h of nvidia-cuda-runtime. Callers: libc10_cuda (CUDAFunctions.cpp, CUDADeviceAssertion.cpp),
// libtorch_cuda (CUDAContext.cpp, Exceptions.cpp), libtorch_cpu (Kineto's DeviceProperties.cpp), torch/csrc/cuda.
#include <cuda.h>
#include <cupti_runtime_cbid.h>
#include <dlfcn.h>

#include <cstdio>
#include <cstring>
#include <map>

#include "errors.h"
#include "memory.h"
#include "profiler.h"

using namespace vgpu;

namespace {

constexpr int VERSION = 13000;
thread_local cudaError_t last_error;

struct ErrorText {
    const char *name, *text;
};

const ErrorText &error_text(cudaError_t error) {
    static const std::map<int, ErrorText> texts = {
        {cudaSuccess, {"cudaSuccess", "no error"}},
        {cudaErrorInvalidValue, {"cudaErrorInvalidValue", "invalid argument"}},
        {cudaErrorMemoryAllocation, {"cudaErrorMemoryAllocation", "out of memory"}},
        {cudaErrorDevicesUnavailable, {"cudaErrorDevicesUnavailable", "CUDA-capable device(s) is/are busy or unavailable"}},
        {cudaErrorNoDevice, {"cudaErrorNoDevice", "no CUDA-capable device is detected"}},
        {cudaErrorInvalidDevice, {"cudaErrorInvalidDevice", "invalid device ordinal"}},
        {cudaErrorNoKernelImageForDevice,
         {"cudaErrorNoKernelImageForDevice", "no kernel image is available for execution on the device"}},
        {cudaErrorECCUncorrectable, {"cudaErrorECCUncorrectable", "uncorrectable ECC error encountered"}},
        {cudaErrorPeerAccessAlreadyEnabled, {"cudaErrorPeerAccessAlreadyEnabled", "peer access is already enabled"}},
        {cudaErrorInvalidResourceHandle, {"cudaErrorInvalidResourceHandle", "invalid resource handle"}},
        {cudaErrorNotReady, {"cudaErrorNotReady", "device not ready"}},
        {cudaErrorIllegalAddress, {"cudaErrorIllegalAddress", "an illegal memory access was encountered"}},
        {cudaErrorLaunchFailure, {"cudaErrorLaunchFailure", "unspecified launch failure"}},
        {cudaErrorNotSupported, {"cudaErrorNotSupported", "operation not supported"}},
        {cudaErrorStreamCaptureUnsupported,
         {"cudaErrorStreamCaptureUnsupported", "operation not permitted when stream is capturing"}},
        {cudaErrorStreamCaptureInvalidated,
         {"cudaErrorStreamCaptureInvalidated", "operation failed due to a previous error during capture"}},
        {cudaErrorUnknown, {"cudaErrorUnknown", "unknown error"}},
    };
    static const ErrorText other = {"cudaErrorOther", "an error that the virtual GPU has no text for"};
    auto found = texts.find(error);
    return found == texts.end() ? other : found->second;
}

bool exists(int device) { return device >= 0 && device < (int)visible_devices().size(); }

void fill_uuid(const std::string &text, cudaUUID_t *uuid) {
    int at = 0;
    for (const char *digit = text.c_str() + strlen("GPU-"); *digit && at < 32; digit++) {
        if (*digit == '-') continue;
        int value = *digit <= '9' ? *digit - '0' : *digit - 'a' + 10;
        uuid->bytes[at / 2] = (char)((uuid->bytes[at / 2] << 4) | value);
        at++;
    }
}

}  // namespace

namespace vgpu {

cudaError_t failed(cudaError_t error) {
    if (error) last_error = error;
    return error;
}

}  // namespace vgpu

extern "C" {

cudaError_t cudaGetDeviceCount(int *count) {
    *count = (int)visible_devices().size();
    return *count ? cudaSuccess : failed(cudaErrorNoDevice);
}

cudaError_t cudaGetDevice(int *device) {
    *device = current_device();
    return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
    if (!exists(device)) return failed(cudaErrorInvalidDevice);
    current_device() = device;
    return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int *version) {
    *version = VERSION;
    return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int *version) {
    *version = VERSION;
    return cudaSuccess;
}

cudaError_t cudaGetLastError() {
    cudaError_t error = last_error;
    last_error = cudaSuccess;
    return error;
}

cudaError_t cudaPeekAtLastError() { return last_error; }
const char *cudaGetErrorString(cudaError_t error) { return error_text(error).text; }
const char *cudaGetErrorName(cudaError_t error) { return error_text(error).name; }

// The limits are those of compute capability 8.0, in the CUDA C++ programming guide.
cudaError_t cudaGetDeviceProperties(cudaDeviceProp *properties, int device) {
    if (!exists(device)) return failed(cudaErrorInvalidDevice);
    const Device &planted = visible_device(device);
    *properties = {};
    snprintf(properties->name, sizeof properties->name, "%s", planted.name.c_str());
    fill_uuid(planted.uuid(), &properties->uuid);
    properties->totalGlobalMem = planted.memory_bytes;
    properties->major = planted.major;
    properties->minor = planted.minor;
    properties->multiProcessorCount = planted.multiprocessors;
    properties->pciBusID = planted.index + 1;
    properties->sharedMemPerBlock = 48 << 10;
    properties->sharedMemPerBlockOptin = 163 << 10;
    properties->sharedMemPerMultiprocessor = 164 << 10;
    properties->reservedSharedMemPerBlock = 1 << 10;
    properties->regsPerBlock = properties->regsPerMultiprocessor = 65536;
    properties->warpSize = 32;
    properties->maxThreadsPerBlock = 1024;
    properties->maxThreadsPerMultiProcessor = 2048;
    properties->maxBlocksPerMultiProcessor = 32;
    properties->maxThreadsDim[0] = properties->maxThreadsDim[1] = 1024;
    properties->maxThreadsDim[2] = 64;
    properties->maxGridSize[0] = 2147483647;
    properties->maxGridSize[1] = properties->maxGridSize[2] = 65535;
    properties->totalConstMem = 65536;
    properties->textureAlignment = 512;
    properties->texturePitchAlignment = 32;
    properties->memoryBusWidth = 5120;
    // torch.compile fills it hundreds of times to benchmark kernels, at the speed of the host.
    properties->l2CacheSize = 256 << 10;
    properties->asyncEngineCount = 3;
    properties->ECCEnabled = 1;
    properties->canMapHostMemory = properties->concurrentKernels = properties->unifiedAddressing = 1;
    properties->streamPrioritiesSupported = properties->managedMemory = properties->cooperativeLaunch = 1;
    properties->hostRegisterSupported = properties->memoryPoolsSupported = 1;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr attribute, int device) {
    cudaDeviceProp properties;
    if (cudaError_t error = cudaGetDeviceProperties(&properties, device)) return error;
    const std::map<int, int> values = {
        {cudaDevAttrComputeCapabilityMajor, properties.major},
        {cudaDevAttrComputeCapabilityMinor, properties.minor},
        {cudaDevAttrMultiProcessorCount, properties.multiProcessorCount},
        {cudaDevAttrMaxThreadsPerBlock, properties.maxThreadsPerBlock},
        {cudaDevAttrMaxThreadsPerMultiProcessor, properties.maxThreadsPerMultiProcessor},
        {cudaDevAttrWarpSize, properties.warpSize},
        {cudaDevAttrMaxSharedMemoryPerBlock, (int)properties.sharedMemPerBlock},
        {cudaDevAttrMaxSharedMemoryPerBlockOptin, (int)properties.sharedMemPerBlockOptin},
        {cudaDevAttrMaxSharedMemoryPerMultiprocessor, (int)properties.sharedMemPerMultiprocessor},
        {cudaDevAttrMaxRegistersPerBlock, properties.regsPerBlock},
        {cudaDevAttrMaxRegistersPerMultiprocessor, properties.regsPerMultiprocessor},
        {cudaDevAttrMaxGridDimX, properties.maxGridSize[0]},
        {cudaDevAttrMaxGridDimY, properties.maxGridSize[1]},
        {cudaDevAttrMaxGridDimZ, properties.maxGridSize[2]},
        {cudaDevAttrMaxBlockDimX, properties.maxThreadsDim[0]},
        {cudaDevAttrMaxBlockDimY, properties.maxThreadsDim[1]},
        {cudaDevAttrMaxBlockDimZ, properties.maxThreadsDim[2]},
        {cudaDevAttrPciBusId, properties.pciBusID},
        {cudaDevAttrClockRate, 1410000},
        {cudaDevAttrMemoryClockRate, 1215000},
        {cudaDevAttrL2CacheSize, properties.l2CacheSize},
        {cudaDevAttrUnifiedAddressing, 1},
        {cudaDevAttrCanMapHostMemory, 1},
        {cudaDevAttrCooperativeLaunch, 1},
        {cudaDevAttrMemoryPoolsSupported, 1},
    };
    auto found = values.find(attribute);
    *value = found == values.end() ? 0 : found->second;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetPCIBusId(char *text, int size, int device) {
    if (!exists(device)) return failed(cudaErrorInvalidDevice);
    snprintf(text, size, "0000:%02x:00.0", visible_device(device).index + 1);
    return cudaSuccess;
}

cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int peer) {
    if (!exists(device) || !exists(peer)) return failed(cudaErrorInvalidDevice);
    const Link &link = node().links[visible_device(device).index][visible_device(peer).index];
    *can = device != peer && link.peer;
    return cudaSuccess;
}

cudaError_t cudaDeviceEnablePeerAccess(int, unsigned) { return cudaSuccess; }

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
    if (least) *least = 0;
    if (greatest) *greatest = -5;
    return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t *free, size_t *total) {
    if (cudaError_t error = broken()) return error;
    memory_of(current_device(), free, total);
    return cudaSuccess;
}

cudaError_t cudaProfilerStart() { return cudaSuccess; }
cudaError_t cudaProfilerStop() { return cudaSuccess; }

// torch finds the driver's functions by this (c10/cuda/driver_api.cpp, Exceptions.h); none may be missing.
cudaError_t cudaGetDriverEntryPointByVersion(
    const char *name, void **function, unsigned, unsigned long long, cudaDriverEntryPointQueryResult *result) {
    *function = dlsym(RTLD_DEFAULT, name);
    if (result) *result = *function ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
    return cudaSuccess;
}

}  // extern "C"
