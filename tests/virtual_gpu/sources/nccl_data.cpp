// What NCCL's collectives do to data, and how they are named.
#include "nccl_data.h"

#define __CUDA_FP16_H__
#define __CUDA_BF16_H__
#define __CUDA_FP8_H__
#include <nccl.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <stdexcept>

namespace vgpu {

namespace {

struct Type {
    size_t bytes;
    const char *name;  // in the kernel's name, which has signed integers as unsigned ones
};

const Type &type_of(int type) {  // by ncclDataType_t
    static const Type types[] = {{1, "u8"},  {1, "u8"},  {4, "u32"},  {4, "u32"},  {8, "u64"},    {8, "u64"},
                                 {2, "f16"}, {4, "f32"}, {8, "f64"}, {2, "bf16"}, {1, "f8e4m3"}, {1, "f8e5m2"}};
    return types[type];
}

// Numbers of each type, computed in another where C++ cannot compute in the type itself.
struct Half {
    uint16_t bits;
    explicit operator float() const {
        _Float16 value;
        memcpy(&value, &bits, sizeof value);
        return (float)value;
    }
    static Half from(float number) {
        auto value = (_Float16)number;
        Half half;
        memcpy(&half.bits, &value, sizeof value);
        return half;
    }
};

struct BFloat {
    uint16_t bits;
    explicit operator float() const {
        uint32_t wide = (uint32_t)bits << 16;
        float value;
        memcpy(&value, &wide, sizeof value);
        return value;
    }
    static BFloat from(float number) {
        uint32_t wide;
        memcpy(&wide, &number, sizeof wide);
        return {(uint16_t)((wide + 0x7fff + ((wide >> 16) & 1)) >> 16)};  // to nearest, ties to even
    }
};

template <class Stored, class Number> Stored stored(Number number) {
    if constexpr (std::is_same_v<Stored, Number>) {
        return number;
    } else {
        return Stored::from(number);
    }
}

template <class Number> Number combined(int operation, Number one, Number other) {
    switch (operation) {
    case ncclProd: return one * other;
    case ncclMax: return std::max(one, other);
    case ncclMin: return std::min(one, other);
    default: return one + other;  // sum, average, scaled sum
    }
}

template <class Stored, class Number> void reduce(const Collective &by, const std::vector<const char *> &from) {
    auto scaled = [&](const char *start, size_t at) {
        Stored value;
        memcpy(&value, start + at * sizeof value, sizeof value);
        return by.factor == 1 ? (Number)value : (Number)((Number)value * (Number)by.factor);
    };
    for (size_t at = 0; at < by.count; at++) {
        Number sum = scaled(from[0], at);
        for (size_t rank = 1; rank < from.size(); rank++) sum = combined(by.operation, sum, scaled(from[rank], at));
        if (by.operation == ncclAvg) sum = sum / (Number)from.size();
        ((Stored *)by.to)[at] = stored<Stored>(sum);
    }
}

void reduce_by_type(const Collective &by, const std::vector<const char *> &from) {
    switch (by.type) {
    case ncclInt8: return reduce<int8_t, int8_t>(by, from);
    case ncclUint8: return reduce<uint8_t, uint8_t>(by, from);
    case ncclInt32: return reduce<int32_t, int32_t>(by, from);
    case ncclUint32: return reduce<uint32_t, uint32_t>(by, from);
    case ncclInt64: return reduce<int64_t, int64_t>(by, from);
    case ncclUint64: return reduce<uint64_t, uint64_t>(by, from);
    case ncclFloat32: return reduce<float, float>(by, from);
    case ncclFloat64: return reduce<double, double>(by, from);
    case ncclFloat16: return reduce<Half, float>(by, from);
    case ncclBfloat16: return reduce<BFloat, float>(by, from);
    default: throw std::runtime_error("virtual NCCL cannot reduce this type");
    }
}

const char *kind_name(Kind kind) {
    switch (kind) {
    case Kind::ALL_REDUCE: return "AllReduce";
    case Kind::BROADCAST: return "Broadcast";
    case Kind::REDUCE: return "Reduce";
    case Kind::ALL_GATHER: return "AllGather";
    case Kind::REDUCE_SCATTER: return "ReduceScatter";
    default: return "SendRecv";
    }
}

}  // namespace

size_t Collective::bytes() const { return count * type_of(type).bytes; }

size_t Collective::sent_bytes() const {
    switch (kind) {
    case Kind::BROADCAST: return rank == root ? bytes() : 0;
    case Kind::SCATTER: return rank == root ? bytes() * ranks : 0;
    case Kind::REDUCE_SCATTER:
    case Kind::ALL_TO_ALL: return bytes() * ranks;
    case Kind::RECV: return 0;
    default: return bytes();
    }
}

double Collective::carried_bytes() const {  // nccl-tests' PERFORMANCE.md, by its factors for bus bandwidth
    auto size = (double)bytes();
    switch (kind) {
    case Kind::ALL_REDUCE: return 2 * size * (ranks - 1) / ranks;
    case Kind::ALL_GATHER:
    case Kind::REDUCE_SCATTER:
    case Kind::ALL_TO_ALL:
    case Kind::GATHER:
    case Kind::SCATTER: return size * (ranks - 1);
    default: return ranks > 1 ? size : 0;
    }
}

// By best_kernel of NCCL's src/device/generate.py: a kernel is compiled for sums alone, and computes the other operations, too.
std::string kernel_name(const Collective &collective, const std::string &algorithm) {
    std::string name = std::string("ncclDevKernel_") + kind_name(collective.kind);
    Kind kind = collective.kind;
    bool reduces = kind == Kind::ALL_REDUCE || kind == Kind::REDUCE || kind == Kind::REDUCE_SCATTER;
    if (reduces) name += std::string("_Sum_") + type_of(collective.type).name;
    if (strcmp(kind_name(kind), "SendRecv") != 0) name += "_" + algorithm;
    return name + "(ncclDevKernelArgsStorage<4096ul>)";
}

void move_data(const Collective &collective, const std::vector<const char *> &from) {
    size_t size = collective.bytes();
    auto *to = (char *)collective.to;
    int rank = collective.rank, root = collective.root, ranks = collective.ranks;
    std::vector<const char *> own_parts;
    for (const char *start : from) own_parts.push_back(start + rank * size);
    switch (collective.kind) {
    case Kind::ALL_REDUCE: return reduce_by_type(collective, from);
    case Kind::REDUCE_SCATTER: return reduce_by_type(collective, own_parts);
    case Kind::REDUCE:
        if (rank == root) reduce_by_type(collective, from);
        return;
    case Kind::BROADCAST: memmove(to, from[root], size); return;
    case Kind::ALL_GATHER:
        for (int peer = 0; peer < ranks; peer++) memcpy(to + peer * size, from[peer], size);
        return;
    case Kind::ALL_TO_ALL:
        for (int peer = 0; peer < ranks; peer++) memcpy(to + peer * size, own_parts[peer], size);
        return;
    case Kind::GATHER:
        for (int peer = 0; peer < ranks && rank == root; peer++) memcpy(to + peer * size, from[peer], size);
        return;
    case Kind::SCATTER: memcpy(to, from[root] + rank * size, size); return;
    case Kind::RECV: memcpy(to, from[0], size); return;
    case Kind::SEND: return;
    }
}

}  // namespace vgpu
