// What cuBLAS, cuBLASLt and cuDNN share: each call that computes is one kernel on its handle's stream.
#pragma once
#include <cupti_runtime_cbid.h>

#include "errors.h"
#include "profiler.h"

namespace vgpu {

inline cudaError_t launch_library_kernel(cudaStream_t handle, const char *name, double flop, double bytes = 0) {
    Stream *stream = stream_of(handle);
    const Device &device = visible_device(stream->device);
    auto moving = (Nanoseconds)(bytes / device.memory_gb_per_s);
    delay_host(name);
    Call call(CUPTI_RUNTIME_TRACE_CBID_cudaLaunchKernel_v7000);
    if (cudaError_t error = launch_error(stream)) return failed(error);
    enqueue_kernel(stream, {name, flop_time(device, flop) + moving});
    return cudaSuccess;
}

}  // namespace vgpu
