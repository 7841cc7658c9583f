// Planted faults of launches: a late host, a launch that fails, a device that is lost.
#include <cstring>

#include "clock.h"

namespace vgpu {

namespace {

constexpr int MOST_DEVICES = 64;
int64_t launches[MOST_DEVICES];  // by device of this process

bool applies(const Fault &fault, int device) {
    bool here = fault.rank == ANY || fault.rank == rank();
    return here && (fault.device == ANY || fault.device == visible_device(device).index);
}

bool lasts(const Fault &fault) { return fault.kind == "sticky" || fault.kind == "lost"; }

cudaError_t error_of(int device, bool of_a_launch) {
    for (const Fault &fault : node().faults) {
        bool begun = launches[device] > fault.after;
        bool matters = lasts(fault) || (fault.kind == "launch" && of_a_launch);
        if (begun && matters && applies(fault, device)) return (cudaError_t)fault.error;
    }
    return cudaSuccess;
}

}  // namespace

void delay_host(const char *kernel) {
    for (const HostDelay &delay : node().host_delays) {
        bool here = delay.rank == ANY || delay.rank == rank();
        if (here && strstr(kernel, delay.kernel.c_str())) sleep_until(now() + delay.time_ns);
    }
}

cudaError_t launch_error(const Stream *stream) {
    if (node().faults.empty()) return cudaSuccess;
    launches[stream->device]++;
    return error_of(stream->device, true);
}

cudaError_t lasting_error(int device) {
    if (node().faults.empty() || visible_devices().empty()) return cudaSuccess;
    return error_of(device, false);
}

}  // namespace vgpu
