// The planted node: what the file named by VGPU_NODE describes. The README lists its fields.
#pragma once
#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

namespace vgpu {

using Nanoseconds = int64_t;
constexpr int ANY = -1;

struct Device {
    std::string name;  // contains "dpscope virtual GPU"
    int index;         // the physical one, as NVML counts
    size_t memory_bytes;
    int major, minor;  // compute capability
    int multiprocessors;
    double teraflops;
    double memory_gb_per_s;
    double slowdown;  // factor of every kernel's time
    std::string uuid() const;
};

struct Link {
    std::string kind;  // nvlink, pcie
    double gb_per_s;
    Nanoseconds latency_ns;
    bool peer;  // whether one device reads the other's memory
};

struct KernelTime {
    std::string part;  // of the mangled name
    Nanoseconds time_ns;
};

struct CollectiveTime {
    double up_to_bytes;
    Nanoseconds latency_ns;
    double gb_per_s;        // 0: the slowest link's between neighbours in the ring
    std::string algorithm;  // as the kernel's name has it: RING_LL
};

struct HostDelay {
    int rank;
    std::string kernel;  // part of the name of the kernel before whose launch the host sleeps
    Nanoseconds time_ns;
};

struct Fault {
    std::string kind;  // launch, sticky, lost, never_arrives, async_error, corrupts
    int rank, device;  // ANY
    int64_t after;     // launches or collectives that still succeed
    int error;
};

struct Node {
    std::vector<Device> devices;
    std::vector<std::vector<Link>> links;  // by two physical indices
    int cuda_devices;                      // CUDA sees at most so many
    int nvml_devices;
    std::set<std::string> nvml_missing;  // functions
    std::string truth_folder, meeting_folder;
    double host_gb_per_s;
    Nanoseconds launch_ns, copy_ns, kernel_ns, matrix_ns;
    double ps_per_thread;
    std::vector<KernelTime> kernel_times;
    std::vector<CollectiveTime> collective_times;  // by rising size
    double largest_moved_bytes;                    // larger collectives carry times only
    std::vector<HostDelay> host_delays;
    std::vector<Fault> faults;
};

const Node &node();
int rank();  // of this process, 0 outside torchrun

// Physical devices in CUDA's order, as CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER leave them.
const std::vector<int> &visible_devices();
const Device &visible_device(int device);

Nanoseconds planted_time(const char *kernel, Nanoseconds otherwise);
const CollectiveTime &collective_time(double bytes);
Nanoseconds flop_time(const Device &device, double flop);

}  // namespace vgpu
