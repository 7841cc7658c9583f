// The last error of a thread, as the runtime keeps it.
#pragma once
#include "clock.h"

namespace vgpu {

cudaError_t failed(cudaError_t error);  // remembers it, and returns it; cudaSuccess changes nothing

// What every call that waits or launches returns first: the error that lasts, of this thread's device.
inline cudaError_t broken() { return failed(lasting_error(current_device())); }

}  // namespace vgpu
