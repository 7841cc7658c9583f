// The planted node: what the file named by VGPU_NODE describes.
#include "node.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <numeric>
#include <sstream>
#include <stdexcept>
#include <unistd.h>

#include "json.h"

namespace vgpu {

namespace {

const char *const MARK = "dpscope virtual GPU";  // in every device's name: no trace of it passes for a measurement

Nanoseconds from_us(double us) { return (Nanoseconds)(us * 1000 + 0.5); }

Device read_device(const Json &record, int index) {
    std::string name = record.string("name", MARK);
    if (name.find(MARK) == std::string::npos) name = std::string(MARK) + " " + name;
    const Json &capability = record["capability"];
    bool stated = capability.items.size() == 2;
    return {
        .name = name,
        .index = index,
        .memory_bytes = (size_t)record.number("memory_mib", 16384) << 20,
        .major = stated ? (int)capability.items[0].value : 8,
        .minor = stated ? (int)capability.items[1].value : 0,
        .multiprocessors = (int)record.number("multiprocessors", 108),
        .teraflops = record.number("teraflops", 10),
        .memory_gb_per_s = record.number("memory_gb_per_s", 500),
        .slowdown = record.number("slowdown", 1),
    };
}

Link read_link(const Json &record, const Link &otherwise) {
    return {
        .kind = record.string("kind", otherwise.kind),
        .gb_per_s = record.number("gb_per_s", otherwise.gb_per_s),
        .latency_ns = from_us(record.number("latency_us", otherwise.latency_ns / 1000.0)),
        .peer = record.number("peer", otherwise.peer) != 0,
    };
}

void read_links(const Json &record, Node &node) {
    Link common = read_link(record, {"nvlink", 20, 1500, true});
    size_t count = node.devices.size();
    node.links.assign(count, std::vector<Link>(count, common));
    for (const Json &unlike : record["unlike"].items) {
        int one = (int)unlike["devices"].items.at(0).value;
        int other = (int)unlike["devices"].items.at(1).value;
        node.links.at(one).at(other) = node.links.at(other).at(one) = read_link(unlike, common);
    }
}

void read_kernels(const Json &record, Node &node) {
    node.kernel_ns = from_us(record.number("us", 20));
    node.matrix_ns = from_us(record.number("matrix_us", 5));
    node.ps_per_thread = record.number("ps_per_thread", 0);
    for (const Json &named : record["by_name"].items)
        node.kernel_times.push_back({named.string("name", ""), from_us(named.number("us", 0))});
}

void read_collectives(const Json &record, Node &node) {
    node.largest_moved_bytes = record.number("largest_moved_bytes", 64 << 20);
    for (const Json &tier : record["by_size"].items)
        node.collective_times.push_back({
            .up_to_bytes = tier.number("up_to_bytes", 1e18),
            .latency_ns = from_us(tier.number("latency_us", 15)),
            .gb_per_s = tier.number("gb_per_s", 0),
            .algorithm = tier.string("algorithm", "RING_LL"),
        });
    if (node.collective_times.empty()) node.collective_times.push_back({1e18, 15000, 0, "RING_LL"});
}

void read_faults(const Json &record, Node &node) {
    for (const Json &delay : record["host_delays"].items)
        node.host_delays.push_back({
            .rank = (int)delay.number("rank", ANY),
            .kernel = delay.string("kernel", ""),
            .time_ns = from_us(delay.number("us", 0)),
        });
    for (const Json &fault : record["faults"].items)
        node.faults.push_back({
            .kind = fault.string("kind", ""),
            .rank = (int)fault.number("rank", ANY),
            .device = (int)fault.number("device", ANY),
            .after = (int64_t)fault.number("after", 0),
            .error = (int)fault.number("error", 0),
        });
}

Node read_node() {
    const char *path = getenv("VGPU_NODE");
    std::ifstream file(path ? path : "");
    if (!file) throw std::runtime_error("no such file");
    std::stringstream text;
    text << file.rdbuf();
    Json record = parse_json(text.str());
    Node node{};
    for (const Json &device : record["devices"].items) node.devices.push_back(read_device(device, (int)node.devices.size()));
    int count = (int)node.devices.size();
    node.cuda_devices = (int)record.number("cuda_devices", count);
    node.nvml_devices = (int)record["nvml"].number("devices", count);
    for (const Json &name : record["nvml"]["missing"].items) node.nvml_missing.insert(name.text);
    node.truth_folder = record.string("truth_folder", "");
    node.meeting_folder = record.string("meeting_folder", "/dev/shm");
    node.host_gb_per_s = record.number("host_gb_per_s", 10);
    node.launch_ns = from_us(record.number("launch_us", 2));
    node.copy_ns = from_us(record.number("copy_us", 1.5));
    read_links(record["links"], node);
    read_kernels(record["kernels"], node);
    read_collectives(record["collectives"], node);
    read_faults(record, node);
    return node;
}

std::vector<int> in_order(const std::string &order) {
    std::vector<int> devices(node().devices.size());
    std::iota(devices.begin(), devices.end(), 0);
    auto faster = [](int one, int other) { return node().devices[one].teraflops > node().devices[other].teraflops; };
    if (order != "PCI_BUS_ID") std::stable_sort(devices.begin(), devices.end(), faster);  // CUDA's default: fastest first
    return devices;
}

int named_device(const std::string &word, const std::vector<int> &ordered) {
    if (word.rfind("GPU-", 0) == 0) {
        for (const Device &device : node().devices)
            if (device.uuid().rfind(word, 0) == 0) return device.index;
        return -1;
    }
    char *end;
    long index = strtol(word.c_str(), &end, 10);
    bool valid = !word.empty() && !*end && index >= 0 && index < (long)ordered.size();
    return valid ? ordered[index] : -1;
}

std::vector<int> read_visible_devices() {
    const char *order = getenv("CUDA_DEVICE_ORDER");
    std::vector<int> ordered = in_order(order ? order : "");
    std::vector<int> visible;
    if (const char *named = getenv("CUDA_VISIBLE_DEVICES")) {
        std::stringstream words(named);
        for (std::string word; std::getline(words, word, ',');) {
            int device = named_device(word, ordered);
            if (device < 0) break;  // CUDA ignores an invalid entry and all after it
            visible.push_back(device);
        }
    } else {
        visible = ordered;
    }
    if ((int)visible.size() > node().cuda_devices) visible.resize(node().cuda_devices);
    return visible;
}

}  // namespace

std::string Device::uuid() const {
    char text[64];
    snprintf(text, sizeof text, "GPU-d5000000-0000-0000-0000-%012x", index);
    return text;
}

const Node &node() {
    static const Node *read = [] {
        try {
            return new Node(read_node());
        } catch (const std::exception &error) {
            const char *path = getenv("VGPU_NODE");
            fprintf(stderr, "virtual GPU: VGPU_NODE=%s: %s\n", path ? path : "", error.what());
            _exit(70);
        }
    }();
    return *read;
}

int rank() {
    static int number = [] {
        const char *text = getenv("RANK");
        return text ? atoi(text) : 0;
    }();
    return number;
}

const std::vector<int> &visible_devices() {
    static const auto *devices = new std::vector<int>(read_visible_devices());
    return *devices;
}

const Device &visible_device(int device) { return node().devices[visible_devices().at(device)]; }

Nanoseconds planted_time(const char *kernel, Nanoseconds otherwise) {
    for (const KernelTime &rule : node().kernel_times)
        if (strstr(kernel, rule.part.c_str())) return rule.time_ns;
    return otherwise;
}

const CollectiveTime &collective_time(double bytes) {
    for (const CollectiveTime &tier : node().collective_times)
        if (bytes <= tier.up_to_bytes) return tier;
    return node().collective_times.back();
}

Nanoseconds flop_time(const Device &device, double flop) {
    return node().matrix_ns + (Nanoseconds)(flop / (device.teraflops * 1000));
}

}  // namespace vgpu
