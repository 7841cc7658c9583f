// libnvidia-ml. Of a node whose driver is older some functions answer as pynvml does for one that is not there.
//
// Declarations: NVIDIA's NVML API reference, as pynvml (nvidia-ml-py) has them in ctypes; no wheel of torch's has nvml.h. Callers:
// profiling/machine through pynvml, torch.cuda (device_count), CUDACachingAllocator.cpp where memory is short.
// A handle is 1 + the physical index. NVML ignores CUDA_VISIBLE_DEVICES and counts in PCI order.
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "node.h"

using namespace vgpu;

namespace {

enum Answer {
    SUCCESS = 0, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, FUNCTION_NOT_FOUND = 13, GPU_IS_LOST = 15
};
constexpr unsigned NVLINKS = 12;  // of each device: links 0 to 11, to the peers in turn
constexpr unsigned long long USED_BYTES = 300ull << 20;

struct Memory {
    unsigned long long total, free, used;
};

struct Memory2 {
    unsigned version;
    unsigned long long total, reserved, free, used;
};

struct Pci {
    char legacy[16];
    unsigned domain, bus, device, id, subsystem;
    char text[32];
};

const Device &device_of(void *handle) {
    size_t index = (uintptr_t)handle - 1;
    return node().devices[index % node().devices.size()];  // parts of one GPU are like it
}

int bus_of(void *handle) { return (int)(uintptr_t)handle; }

int describe_pci(int bus, Pci *pci) {
    *pci = {};
    pci->bus = bus;
    snprintf(pci->legacy, sizeof pci->legacy, "0000:%02X:00.0", bus);
    snprintf(pci->text, sizeof pci->text, "00000000:%02X:00.0", bus);
    return SUCCESS;
}

// The device at the other end of an NVLink: its peers by NVLink take the links in turn.
const Device *nvlink_peer(void *handle, unsigned link) {
    const Device &own = device_of(handle);
    std::vector<const Device *> peers;
    for (const Device &other : node().devices)
        if (other.index != own.index && node().links[own.index][other.index].kind == "nvlink") peers.push_back(&other);
    return peers.empty() || link >= NVLINKS ? nullptr : peers[link % peers.size()];
}

const Link &link_between(void *one, void *other) { return node().links[device_of(one).index][device_of(other).index]; }

int lost(void *handle) {
    for (const Fault &fault : node().faults)
        if (fault.kind == "lost" && fault.after == 0 && fault.device == device_of(handle).index) return GPU_IS_LOST;
    return SUCCESS;
}

int unless_missing(const char *function) {
    return node().nvml_missing.count(function) ? FUNCTION_NOT_FOUND : SUCCESS;
}

}  // namespace

extern "C" {

int nvmlInit_v2() { return SUCCESS; }
int nvmlInit() { return SUCCESS; }  // torch asks by this name
int nvmlInitWithFlags(unsigned) { return unless_missing(__func__); }
int nvmlShutdown() { return SUCCESS; }
const char *nvmlErrorString(int answer) { return answer == NOT_SUPPORTED ? "Not Supported" : "error of the virtual NVML"; }

int nvmlSystemGetDriverVersion(char *text, unsigned size) {
    snprintf(text, size, "580.00.00");
    return SUCCESS;
}

int nvmlSystemGetNVMLVersion(char *text, unsigned size) {
    snprintf(text, size, "13.580.00");
    return SUCCESS;
}

int nvmlSystemGetCudaDriverVersion_v2(int *version) {
    *version = 13000;
    return SUCCESS;
}

int nvmlDeviceGetCount_v2(unsigned *count) {
    *count = node().nvml_devices;
    return SUCCESS;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle) {
    if (index >= (unsigned)node().nvml_devices) return INVALID_ARGUMENT;
    *handle = (void *)(uintptr_t)(index + 1);
    return lost(*handle);
}

int nvmlDeviceGetHandleByUUID(const char *uuid, void **handle) {
    for (const Device &device : node().devices) {
        if (device.uuid() != uuid) continue;
        *handle = (void *)(uintptr_t)(device.index + 1);
        return lost(*handle);
    }
    return NOT_FOUND;
}

int nvmlDeviceGetHandleByPciBusId_v2(const char *text, void **handle) {
    const char *bus = strchr(text, ':');
    if (!bus) return INVALID_ARGUMENT;
    *handle = (void *)(uintptr_t)strtol(bus + 1, nullptr, 16);
    return lost(*handle);
}

int nvmlDeviceGetIndex(void *handle, unsigned *index) {
    *index = bus_of(handle) - 1;
    return SUCCESS;
}

int nvmlDeviceGetName(void *handle, char *text, unsigned size) {
    snprintf(text, size, "%s", device_of(handle).name.c_str());
    return SUCCESS;
}

int nvmlDeviceGetUUID(void *handle, char *text, unsigned size) {
    snprintf(text, size, "%s", device_of(handle).uuid().c_str());
    return SUCCESS;
}

int nvmlDeviceGetPciInfo_v3(void *handle, Pci *pci) { return describe_pci(bus_of(handle), pci); }

int nvmlDeviceGetMemoryInfo(void *handle, Memory *memory) {
    unsigned long long total = device_of(handle).memory_bytes;
    *memory = {total, total - USED_BYTES, USED_BYTES};
    return SUCCESS;
}

int nvmlDeviceGetMemoryInfo_v2(void *handle, Memory2 *memory) {
    unsigned long long total = device_of(handle).memory_bytes;
    *memory = {memory->version, total, 0, total - USED_BYTES, USED_BYTES};
    return SUCCESS;
}

int nvmlDeviceGetComputeRunningProcesses_v3(void *, unsigned *count, void *) {
    *count = 0;
    return unless_missing(__func__);
}

int nvmlDeviceGetComputeRunningProcesses(void *, unsigned *count, void *) {  // torch asks by this name
    *count = 0;
    return SUCCESS;
}

int nvmlDeviceGetP2PStatus(void *one, void *other, int, int *status) {
    constexpr int OK = 0, CHIPSET_NOT_SUPPORTED = 1;
    *status = link_between(one, other).peer ? OK : CHIPSET_NOT_SUPPORTED;
    return SUCCESS;
}

int nvmlDeviceGetTopologyCommonAncestor(void *, void *, int *level) {
    constexpr int SINGLE_SWITCH = 10;
    *level = SINGLE_SWITCH;
    return SUCCESS;
}

int nvmlDeviceGetNvLinkState(void *handle, unsigned link, unsigned *active) {
    if (!nvlink_peer(handle, 0)) return NOT_SUPPORTED;
    if (link >= NVLINKS) return INVALID_ARGUMENT;
    *active = 1;
    return SUCCESS;
}

int nvmlDeviceGetNvLinkVersion(void *handle, unsigned link, unsigned *version) {
    if (!nvlink_peer(handle, link)) return NOT_SUPPORTED;
    *version = 3;
    return SUCCESS;
}

int nvmlDeviceGetNvLinkRemotePciInfo_v2(void *handle, unsigned link, Pci *pci) {
    const Device *peer = nvlink_peer(handle, link);
    return peer ? describe_pci(peer->index + 1, pci) : (int)NOT_SUPPORTED;
}

int nvmlDeviceGetNvLinkRemoteDeviceType(void *handle, unsigned link, int *type) {
    constexpr int GPU = 0;
    *type = GPU;
    return nvlink_peer(handle, link) ? SUCCESS : NOT_SUPPORTED;
}

int nvmlDeviceGetCudaComputeCapability(void *handle, int *major, int *minor) {
    *major = device_of(handle).major;
    *minor = device_of(handle).minor;
    return SUCCESS;
}

int nvmlDeviceGetArchitecture(void *, unsigned *architecture) {
    constexpr unsigned AMPERE = 7;
    *architecture = AMPERE;
    return SUCCESS;
}

int nvmlDeviceGetTemperature(void *, int, unsigned *celsius) {
    *celsius = 40;
    return SUCCESS;
}

int nvmlDeviceGetClockInfo(void *, int, unsigned *mhz) {
    *mhz = 1410;
    return SUCCESS;
}

int nvmlDeviceGetMaxClockInfo(void *, int, unsigned *mhz) {
    *mhz = 1410;
    return SUCCESS;
}

int nvmlDeviceGetPowerUsage(void *, unsigned *milliwatts) {
    *milliwatts = 100000;
    return SUCCESS;
}

int nvmlDeviceGetCurrentClocksThrottleReasons(void *, unsigned long long *reasons) {
    *reasons = 0;
    return SUCCESS;
}

}  // extern "C"
