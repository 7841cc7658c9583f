// libcudart: memory and copies. Copies are real; they are done when they are resolved, in the order of the stream.
//
// Declarations: cuda_runtime_api.h. Callers: CUDACachingAllocator.cpp and CachingHostAllocator.cpp (allocation), Copy.cu
// (cudaMemcpyAsync; between devices without peer access cudaMemcpyPeerAsync), torch/csrc/cuda (cudaHostRegister).
#include <cupti_runtime_cbid.h>

#include <cstring>
#include <memory>
#include <vector>

#include "errors.h"
#include "memory.h"
#include "profiler.h"

using namespace vgpu;

namespace {

int place(const void *pointer, bool *pinned) {
    Block block;
    bool known = find_block(pointer, &block);
    if (known && !block.on_host) return block.device;
    if (pinned) *pinned = known;
    return HOST;
}

Nanoseconds copy_time(const Copy &copy) {
    const Node &planted = node();
    Nanoseconds latency = planted.copy_ns;
    double gb_per_s = planted.host_gb_per_s;
    if (copy.from != HOST && copy.to != HOST) {
        int from = visible_device(copy.from).index;
        int to = visible_device(copy.to).index;
        const Link &link = planted.links[from][to];
        gb_per_s = from == to ? planted.devices[from].memory_gb_per_s : link.gb_per_s;
        if (from != to) latency = link.latency_ns;
        if (from != to && !link.peer) gb_per_s = std::min(gb_per_s, planted.host_gb_per_s) / 2;  // through the host
    }
    return latency + (Nanoseconds)((double)copy.bytes / gb_per_s);
}

cudaError_t enqueue_copy(void *to, const void *from, size_t bytes, Stream *stream, bool blocking) {
    if (cudaError_t error = broken()) return error;
    bool from_pinned = false, to_pinned = false;
    int source = place(from, &from_pinned);
    int target = place(to, &to_pinned);
    Copy copy{source, target, bytes, source == HOST ? from_pinned : to_pinned};
    // The source may change as soon as a call with pageable memory returns, so it is kept where the copy has to wait.
    std::shared_ptr<std::vector<char>> staged;
    {
        std::lock_guard guard(clock_lock);
        bool pageable = source == HOST && !from_pinned;
        auto *start = (const char *)from;
        if (pageable && !stream->waiting.empty()) staged = std::make_shared<std::vector<char>>(start, start + bytes);
    }
    Nanoseconds duration = copy_time(copy);
    enqueue(stream, Resolve([=](Stream &stream, const Op &op) {
        Nanoseconds start = begin(stream, op);
        stream.end_ns = start + duration;
        memmove(to, staged ? staged->data() : from, bytes);
        record_copy({&stream, op.correlation, start, stream.end_ns}, copy);
        return true;
    }));
    bool to_pageable = target == HOST && !to_pinned;  // such a call returns when the copy is done
    if ((blocking || to_pageable) && !stream->capture) finish(stream);
    return cudaSuccess;
}

cudaError_t enqueue_fill(void *start, int value, size_t bytes, Stream *stream) {
    if (cudaError_t error = broken()) return error;
    double gb_per_s = visible_device(stream->device).memory_gb_per_s;
    Nanoseconds duration = node().copy_ns + (Nanoseconds)((double)bytes / gb_per_s);
    enqueue(stream, Resolve([=](Stream &stream, const Op &op) {
        Nanoseconds began = begin(stream, op);
        stream.end_ns = began + duration;
        memset(start, value, bytes);
        record_memset({&stream, op.correlation, began, stream.end_ns}, value, bytes);
        return true;
    }));
    return cudaSuccess;
}

}  // namespace

extern "C" {

cudaError_t cudaMalloc(void **pointer, size_t bytes) {
    Call call(CUPTI_RUNTIME_TRACE_CBID_cudaMalloc_v3020);
    return failed(allocate(pointer, bytes, false));
}

cudaError_t cudaMallocAsync(void **pointer, size_t bytes, cudaStream_t) { return cudaMalloc(pointer, bytes); }

cudaError_t cudaFree(void *pointer) {
    Call call(CUPTI_RUNTIME_TRACE_CBID_cudaFree_v3020);
    return failed(release(pointer));
}

cudaError_t cudaFreeAsync(void *pointer, cudaStream_t) { return cudaFree(pointer); }

cudaError_t cudaHostAlloc(void **pointer, size_t bytes, unsigned) {
    Call call(CUPTI_RUNTIME_TRACE_CBID_cudaHostAlloc_v3020);
    return failed(allocate(pointer, bytes, true));
}

cudaError_t cudaMallocHost(void **pointer, size_t bytes) { return cudaHostAlloc(pointer, bytes, 0); }
cudaError_t cudaFreeHost(void *pointer) { return failed(release(pointer)); }

cudaError_t cudaHostRegister(void *pointer, size_t bytes, unsigned) {
    register_pinned(pointer, bytes);
    return cudaSuccess;
}

cudaError_t cudaHostUnregister(void *pointer) {
    unregister_pinned(pointer);
    return cudaSuccess;
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes *attributes, const void *pointer) {
    constexpr int NO_DEVICE = -2;
    Block block;
    *attributes = {};
    attributes->device = NO_DEVICE;
    if (!find_block(pointer, &block)) return cudaSuccess;  // cudaMemoryTypeUnregistered
    attributes->type = block.on_host ? cudaMemoryTypeHost : cudaMemoryTypeDevice;
    attributes->device = block.device;
    attributes->devicePointer = (void *)pointer;
    if (block.on_host) attributes->hostPointer = (void *)pointer;
    return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, cudaMemcpyKind, cudaStream_t stream) {
    Call call(CUPTI_RUNTIME_TRACE_CBID_cudaMemcpyAsync_v3020);
    return enqueue_copy(to, from, bytes, stream_of(stream), false);
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, cudaMemcpyKind) {
    Call call(CUPTI_RUNTIME_TRACE_CBID_cudaMemcpy_v3020);
    return enqueue_copy(to, from, bytes, stream_of(nullptr), true);
}

cudaError_t cudaMemcpyPeerAsync(void *to, int, const void *from, int, size_t bytes, cudaStream_t stream) {
    Call call(CUPTI_RUNTIME_TRACE_CBID_cudaMemcpyPeerAsync_v4000);
    return enqueue_copy(to, from, bytes, stream_of(stream), false);
}

cudaError_t cudaMemset(void *start, int value, size_t bytes) {
    Call call(CUPTI_RUNTIME_TRACE_CBID_cudaMemset_v3020);
    return enqueue_fill(start, value, bytes, stream_of(nullptr));
}

cudaError_t cudaMemsetAsync(void *start, int value, size_t bytes, cudaStream_t stream) {
    Call call(CUPTI_RUNTIME_TRACE_CBID_cudaMemsetAsync_v3020);
    return enqueue_fill(start, value, bytes, stream_of(stream));
}

}  // extern "C"
