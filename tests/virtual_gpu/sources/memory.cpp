// Device memory, which is the host's: where a pointer belongs, and what is in use.
#include "memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <map>
#include <mutex>

#include "clock.h"
#include "truth.h"

namespace vgpu {

namespace {

constexpr size_t GRANULE = 2 << 20;           // as cudaMalloc rounds
constexpr size_t CONTEXT_BYTES = 300u << 20;  // what a process takes before it allocates
auto &blocks = *new std::map<uintptr_t, Block>;
auto &used_bytes = *new std::map<int, size_t>;  // by device, of this process alone

size_t room(int device) {
    size_t most = visible_device(device).memory_bytes;
    size_t taken = used_bytes[device] + CONTEXT_BYTES;
    return most > taken ? most - taken : 0;
}

void note_use(int device, int64_t change) {
    used_bytes[device] += change;
    Truth line("memory");
    line.count("device", visible_device(device).index).count("time_ns", now());
    line.count("used_bytes", (int64_t)used_bytes[device]);
}

}  // namespace

bool find_block(const void *pointer, Block *found) {
    std::lock_guard guard(clock_lock);
    auto after = blocks.upper_bound((uintptr_t)pointer);
    if (after == blocks.begin()) return false;
    auto [start, block] = *std::prev(after);
    if ((uintptr_t)pointer >= start + block.bytes) return false;
    *found = block;
    return true;
}

cudaError_t allocate(void **pointer, size_t bytes, bool on_host) {
    std::lock_guard guard(clock_lock);
    int device = current_device();
    if (cudaError_t error = lasting_error(device)) return error;
    size_t rounded = std::max((bytes + GRANULE - 1) / GRANULE * GRANULE, GRANULE);
    if (!on_host && rounded > room(device)) return cudaErrorMemoryAllocation;
    void *start = mmap(nullptr, rounded, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (start == MAP_FAILED) return cudaErrorMemoryAllocation;
    blocks[(uintptr_t)start] = {rounded, device, on_host};
    if (!on_host) note_use(device, (int64_t)rounded);
    *pointer = start;
    return cudaSuccess;
}

cudaError_t release(void *pointer) {
    std::lock_guard guard(clock_lock);
    if (!pointer) return cudaSuccess;
    auto found = blocks.find((uintptr_t)pointer);
    if (found == blocks.end()) return cudaErrorInvalidValue;
    const Block &block = found->second;
    if (!block.on_host) note_use(block.device, -(int64_t)block.bytes);
    munmap(pointer, block.bytes);
    blocks.erase(found);
    return cudaSuccess;
}

void register_pinned(void *pointer, size_t bytes) {
    std::lock_guard guard(clock_lock);
    blocks[(uintptr_t)pointer] = {bytes, current_device(), true};
}

void unregister_pinned(void *pointer) {
    std::lock_guard guard(clock_lock);
    blocks.erase((uintptr_t)pointer);
}

void memory_of(int device, size_t *free, size_t *total) {
    std::lock_guard guard(clock_lock);
    *total = visible_device(device).memory_bytes;
    *free = room(device);
}

}  // namespace vgpu
