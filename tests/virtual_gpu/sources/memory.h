// Device memory, which is the host's: where a pointer belongs, and what is in use.
#pragma once
#include <cuda_runtime_api.h>

#include "node.h"

namespace vgpu {

struct Block {
    size_t bytes;
    int device;  // as CUDA counts in this process
    bool on_host;  // pinned
};

bool find_block(const void *pointer, Block *found);
cudaError_t allocate(void **pointer, size_t bytes, bool on_host);
cudaError_t release(void *pointer);
void register_pinned(void *pointer, size_t bytes);
void unregister_pinned(void *pointer);
void memory_of(int device, size_t *free, size_t *total);

}  // namespace vgpu
