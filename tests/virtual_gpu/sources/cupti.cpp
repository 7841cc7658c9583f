// CUPTI's activity API: the records that Kineto asks for, with the times of the virtual clock.
//
// Declarations: cupti.h of nvidia-cuda-cupti. The caller is Kineto in libtorch_cpu (CuptiActivityApi.cpp); it needs these calls.
#include <cupti.h>
#include <pthread.h>
#include <unistd.h>

#include <cstring>

#include "profiler.h"
#include "truth.h"

using namespace vgpu;

namespace {

auto &lock = *new std::recursive_mutex;
bool enabled[CUPTI_ACTIVITY_KIND_COUNT + 1];

// Kineto's buffer, filled as records come: it asks for a flush only where a buffer was requested before.
struct Buffer {
    CUpti_BuffersCallbackRequestFunc request;
    CUpti_BuffersCallbackCompleteFunc complete;
    uint8_t *start;
    size_t size, filled;
} buffer;

// Both clocks at one moment.
struct Reading {
    Nanoseconds time_ns;
    uint64_t ticks;
};

// Of several readings the one that was least interrupted.
Reading read_clocks(CUpti_TimestampCallbackFunc read) {
    Reading best{};
    Nanoseconds shortest = INT64_MAX;
    for (int attempt = 0; attempt < 5; attempt++) {
        Nanoseconds before = now();
        uint64_t ticks = read();
        Nanoseconds after = now();
        if (after - before >= shortest) continue;
        shortest = after - before;
        best = {before + shortest / 2, ticks};
    }
    return best;
}

// Kineto wants times on its own clock (of the TSC): two readings of both clocks give the rate between them.
struct ProfilerClock {
    CUpti_TimestampCallbackFunc read;
    Reading base;

    double rate() const {
        if (!read) return 1;
        Reading last = read_clocks(read);
        return (double)(last.ticks - base.ticks) / (double)(last.time_ns - base.time_ns);
    }
    uint64_t at(uint64_t time_ns, double rate) const {
        if (!read) return time_ns;
        return base.ticks + (int64_t)((double)((int64_t)time_ns - base.time_ns) * rate);
    }
} profiler_clock;

// The operators that Kineto pushed, without a destructor: calls come at exit, too.
struct OperatorStack {
    static constexpr int MOST = 1024;
    uint64_t ids[MOST];
    int depth;
};
thread_local OperatorStack operators[CUPTI_EXTERNAL_CORRELATION_KIND_SIZE];

thread_local uint32_t correlation;
uint32_t last_correlation;

size_t size_of(CUpti_ActivityKind kind) {
    switch (kind) {
    case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL: return sizeof(CUpti_ActivityKernel10);
    case CUPTI_ACTIVITY_KIND_MEMCPY: return sizeof(CUpti_ActivityMemcpy6);
    case CUPTI_ACTIVITY_KIND_MEMCPY2: return sizeof(CUpti_ActivityMemcpyPtoP4);
    case CUPTI_ACTIVITY_KIND_MEMSET: return sizeof(CUpti_ActivityMemset4);
    case CUPTI_ACTIVITY_KIND_RUNTIME:
    case CUPTI_ACTIVITY_KIND_DRIVER: return sizeof(CUpti_ActivityAPI);
    case CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION: return sizeof(CUpti_ActivityExternalCorrelation);
    case CUPTI_ACTIVITY_KIND_SYNCHRONIZATION: return sizeof(CUpti_ActivitySynchronization2);
    default: return 0;
    }
}

template <class Record> void convert(void *record, double rate) {
    auto *timed = (Record *)record;
    timed->start = profiler_clock.at(timed->start, rate);
    timed->end = profiler_clock.at(timed->end, rate);
}

void convert_times(CUpti_Activity *record, double rate) {
    switch (record->kind) {
    case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL: return convert<CUpti_ActivityKernel10>(record, rate);
    case CUPTI_ACTIVITY_KIND_MEMCPY: return convert<CUpti_ActivityMemcpy6>(record, rate);
    case CUPTI_ACTIVITY_KIND_MEMCPY2: return convert<CUpti_ActivityMemcpyPtoP4>(record, rate);
    case CUPTI_ACTIVITY_KIND_MEMSET: return convert<CUpti_ActivityMemset4>(record, rate);
    case CUPTI_ACTIVITY_KIND_RUNTIME:
    case CUPTI_ACTIVITY_KIND_DRIVER: return convert<CUpti_ActivityAPI>(record, rate);
    case CUPTI_ACTIVITY_KIND_SYNCHRONIZATION: return convert<CUpti_ActivitySynchronization2>(record, rate);
    default: return;
    }
}

void hand_over() {
    if (!buffer.start) return;
    double rate = profiler_clock.rate();
    for (size_t at = 0; at < buffer.filled;) {
        auto *record = (CUpti_Activity *)(buffer.start + at);
        convert_times(record, rate);
        at += size_of(record->kind);
    }
    Buffer full = buffer;
    buffer.start = nullptr;
    buffer.size = buffer.filled = 0;
    full.complete(nullptr, 0, full.start, full.size, full.filled);
}

template <class Record> void put(CUpti_ActivityKind kind, Record &record) {
    std::lock_guard guard(lock);
    if (!enabled[kind] || !buffer.request) return;
    record.kind = kind;
    if (buffer.start && buffer.filled + sizeof record > buffer.size) hand_over();
    if (!buffer.start) {
        size_t most_records;
        buffer.request(&buffer.start, &buffer.size, &most_records);
        buffer.filled = 0;
        if (!buffer.start) return;
    }
    memcpy(buffer.start + buffer.filled, &record, sizeof record);
    buffer.filled += sizeof record;
}

// The fields that all records of a device's work share.
template <class Record> Record record_of(const Work &work) {
    Record record{};
    record.start = work.start_ns;
    record.end = work.end_ns;
    record.deviceId = work.stream->device;
    record.contextId = work.stream->device + 1;
    record.streamId = work.stream->id;
    record.correlationId = work.correlation;
    return record;
}

void describe(Truth &line, const Work &work, const std::string &name, size_t bytes) {
    line.text("name", name)
        .count("device", visible_device(work.stream->device).index)
        .count("stream", work.stream->id)
        .count("correlation", work.correlation)
        .count("start_ns", work.start_ns)
        .count("end_ns", work.end_ns)
        .count("bytes", (int64_t)bytes);
}

int physical(int device) { return device == HOST ? HOST : visible_device(device).index; }

const char *direction(const Copy &copy) {
    if (copy.from == HOST) return copy.to == HOST ? "htoh" : "htod";
    if (copy.to == HOST) return "dtoh";
    return copy.from == copy.to ? "dtod" : "ptop";
}

CUpti_ActivityMemcpyKind copy_kind(const Copy &copy) {
    if (copy.from == HOST) return copy.to == HOST ? CUPTI_ACTIVITY_MEMCPY_KIND_HTOH : CUPTI_ACTIVITY_MEMCPY_KIND_HTOD;
    return copy.to == HOST ? CUPTI_ACTIVITY_MEMCPY_KIND_DTOH : CUPTI_ACTIVITY_MEMCPY_KIND_DTOD;
}

CUpti_ActivityMemoryKind memory_kind(int device, bool pinned) {
    if (device != HOST) return CUPTI_ACTIVITY_MEMORY_KIND_DEVICE;
    return pinned ? CUPTI_ACTIVITY_MEMORY_KIND_PINNED : CUPTI_ACTIVITY_MEMORY_KIND_PAGEABLE;
}

void record_peer_copy(const Work &work, const Copy &copy) {
    auto record = record_of<CUpti_ActivityMemcpyPtoP4>(work);
    record.copyKind = CUPTI_ACTIVITY_MEMCPY_KIND_PTOP;
    record.srcKind = record.dstKind = CUPTI_ACTIVITY_MEMORY_KIND_DEVICE;
    record.flags = CUPTI_ACTIVITY_FLAG_MEMCPY_ASYNC;
    record.bytes = copy.bytes;
    record.srcDeviceId = copy.from;
    record.srcContextId = copy.from + 1;
    record.dstDeviceId = copy.to;
    record.dstContextId = copy.to + 1;
    put(CUPTI_ACTIVITY_KIND_MEMCPY2, record);
}

}  // namespace

namespace vgpu {

uint32_t current_correlation() { return correlation; }

Call::Call(uint32_t callback, bool of_driver)
    : start_ns_(now()), callback_(callback), outer_(correlation), of_driver_(of_driver) {
    correlation = correlation_ = __atomic_add_fetch(&last_correlation, 1, __ATOMIC_RELAXED);
    if (!enabled[CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION]) return;
    for (int kind = 0; kind < CUPTI_EXTERNAL_CORRELATION_KIND_SIZE; kind++) {
        const OperatorStack &stack = operators[kind];
        if (!stack.depth) continue;
        CUpti_ActivityExternalCorrelation record{};
        record.externalKind = (CUpti_ExternalCorrelationKind)kind;
        record.externalId = stack.ids[stack.depth - 1];
        record.correlationId = correlation_;
        put(CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION, record);
    }
}

Call::~Call() {
    CUpti_ActivityKind kind = of_driver_ ? CUPTI_ACTIVITY_KIND_DRIVER : CUPTI_ACTIVITY_KIND_RUNTIME;
    correlation = outer_;
    if (!enabled[kind]) return;
    CUpti_ActivityAPI record{};
    record.cbid = callback_;
    record.start = start_ns_;
    record.end = now();
    record.processId = getpid();
    record.threadId = (uint32_t)pthread_self();  // Kineto finds its threads by this
    record.correlationId = correlation_;
    put(kind, record);
}

void record_kernel(const Work &work, const Launch &launch) {
    Truth line("kernel");
    describe(line, work, launch.name, 0);
    auto record = record_of<CUpti_ActivityKernel10>(work);
    record.completed = work.end_ns;
    record.name = launch.name;
    record.gridX = launch.grid.x;
    record.gridY = launch.grid.y;
    record.gridZ = launch.grid.z;
    record.blockX = launch.block.x;
    record.blockY = launch.block.y;
    record.blockZ = launch.block.z;
    record.registersPerThread = 32;
    put(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, record);
}

void record_copy(const Work &work, const Copy &copy) {
    Truth line("copy");
    describe(line, work, direction(copy), copy.bytes);
    line.count("source", physical(copy.from)).count("target", physical(copy.to));
    if (copy.from != HOST && copy.to != HOST && copy.from != copy.to) return record_peer_copy(work, copy);
    auto record = record_of<CUpti_ActivityMemcpy6>(work);
    record.copyKind = copy_kind(copy);
    record.srcKind = memory_kind(copy.from, copy.pinned);
    record.dstKind = memory_kind(copy.to, copy.pinned);
    record.flags = CUPTI_ACTIVITY_FLAG_MEMCPY_ASYNC;
    record.bytes = copy.bytes;
    record.copyCount = 1;
    put(CUPTI_ACTIVITY_KIND_MEMCPY, record);
}

void record_memset(const Work &work, int value, size_t bytes) {
    Truth line("memset");
    describe(line, work, "memset", bytes);
    auto record = record_of<CUpti_ActivityMemset4>(work);
    record.value = value;
    record.bytes = bytes;
    record.memoryKind = CUPTI_ACTIVITY_MEMORY_KIND_DEVICE;
    put(CUPTI_ACTIVITY_KIND_MEMSET, record);
}

void record_wait(const Stream *stream, Nanoseconds start) {
    CUpti_ActivitySynchronization2 record{};
    record.type = stream ? CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_STREAM_SYNCHRONIZE
                         : CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_CONTEXT_SYNCHRONIZE;
    record.start = start;
    record.end = now();
    record.correlationId = correlation;
    record.contextId = (stream ? stream->device : current_device()) + 1;
    record.streamId = stream ? stream->id : 0;
    put(CUPTI_ACTIVITY_KIND_SYNCHRONIZATION, record);
}

}  // namespace vgpu

extern "C" {

CUptiResult cuptiGetVersion(uint32_t *version) {
    *version = CUPTI_API_VERSION;
    return CUPTI_SUCCESS;
}

CUptiResult cuptiSubscribe(CUpti_SubscriberHandle *subscriber, CUpti_CallbackFunc, void *) {
    *subscriber = (CUpti_SubscriberHandle)1;
    return CUPTI_SUCCESS;
}

CUptiResult cuptiGetResultString(CUptiResult, const char **text) {
    *text = "error of the virtual CUPTI";
    return CUPTI_SUCCESS;
}

CUptiResult cuptiActivityRegisterCallbacks(CUpti_BuffersCallbackRequestFunc request, CUpti_BuffersCallbackCompleteFunc complete) {
    std::lock_guard guard(lock);
    buffer.request = request;
    buffer.complete = complete;
    return CUPTI_SUCCESS;
}

CUptiResult cuptiActivityRegisterTimestampCallback(CUpti_TimestampCallbackFunc read) {
    profiler_clock = {read, read ? read_clocks(read) : Reading{}};
    return CUPTI_SUCCESS;
}

CUptiResult cuptiActivityEnable(CUpti_ActivityKind kind) {
    enabled[kind] = true;
    if (kind == CUPTI_ACTIVITY_KIND_MEMCPY) enabled[CUPTI_ACTIVITY_KIND_MEMCPY2] = true;  // copies between devices
    return CUPTI_SUCCESS;
}

CUptiResult cuptiActivityDisable(CUpti_ActivityKind kind) {
    enabled[kind] = false;
    if (kind == CUPTI_ACTIVITY_KIND_MEMCPY) enabled[CUPTI_ACTIVITY_KIND_MEMCPY2] = false;
    return CUPTI_SUCCESS;
}

CUptiResult cuptiActivityFlushAll(uint32_t) {
    {
        std::lock_guard guard(clock_lock);
        resolve_all();
    }
    std::lock_guard guard(lock);
    hand_over();
    return CUPTI_SUCCESS;
}

CUptiResult cuptiActivityGetNextRecord(uint8_t *start, size_t valid_bytes, CUpti_Activity **record) {
    size_t at = *record ? (uint8_t *)*record - start + size_of((*record)->kind) : 0;
    if (at >= valid_bytes) return CUPTI_ERROR_MAX_LIMIT_REACHED;
    *record = (CUpti_Activity *)(start + at);
    return CUPTI_SUCCESS;
}

CUptiResult cuptiActivityGetNumDroppedRecords(CUcontext, uint32_t, size_t *dropped) {
    *dropped = 0;
    return CUPTI_SUCCESS;
}

CUptiResult cuptiActivityPushExternalCorrelationId(CUpti_ExternalCorrelationKind kind, uint64_t id) {
    OperatorStack &stack = operators[kind];
    if (stack.depth == OperatorStack::MOST) return CUPTI_ERROR_OUT_OF_MEMORY;
    stack.ids[stack.depth++] = id;
    return CUPTI_SUCCESS;
}

CUptiResult cuptiActivityPopExternalCorrelationId(CUpti_ExternalCorrelationKind kind, uint64_t *last) {
    OperatorStack &stack = operators[kind];
    if (!stack.depth) return CUPTI_ERROR_QUEUE_EMPTY;
    uint64_t id = stack.ids[--stack.depth];
    if (last) *last = id;
    return CUPTI_SUCCESS;
}

// Kineto calls a runtime event INVALID whose name is not known here.
CUptiResult cuptiGetCallbackName(CUpti_CallbackDomain domain, uint32_t callback, const char **name) {
    static const struct {
        int domain;
        uint32_t callback;
        const char *name;
    } table[] = {
#include "callbacks.h"  // made by stubs.py
    };
    for (const auto &entry : table) {
        if (entry.domain != domain || entry.callback != callback) continue;
        *name = entry.name;
        return CUPTI_SUCCESS;
    }
    return CUPTI_ERROR_INVALID_PARAMETER;
}

}  // extern "C"
