// Streams and their virtual clock: when each operation begins and ends.
#include "clock.h"

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <set>
#include <thread>
#include <time.h>
#include <unistd.h>

#include "profiler.h"
#include "truth.h"

namespace vgpu {

// Nothing here is ever destroyed: torch calls at exit, and the progress thread waits for these.
std::recursive_mutex &clock_lock = *new std::recursive_mutex;

namespace {

constexpr uint32_t DEFAULT_STREAM_ID = 7;     // as CUPTI reports it
constexpr uint32_t FIRST_STREAM_ID = 13;
constexpr useconds_t POLL_US = 1000;          // of what other processes write; no time depends on it
auto &work_came = *new std::condition_variable_any;
auto &streams = *new std::set<Stream *>;

void make_progress() {
    std::unique_lock guard(clock_lock);
    for (;;) {
        resolve_all();
        auto waits = [](const Stream *stream) { return !stream->waiting.empty(); };
        if (std::any_of(streams.begin(), streams.end(), waits)) {
            guard.unlock();
            usleep(POLL_US);
            guard.lock();
        } else {
            work_came.wait(guard);
        }
    }
}

void start_progress() {
    static bool started = (std::thread(make_progress).detach(), true);
    (void)started;
}

}  // namespace

Nanoseconds now() {
    timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000000000LL + time.tv_nsec;
}

void sleep_until(Nanoseconds time) {
    timespec until{time / 1000000000, time % 1000000000};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, nullptr)) {}
}

int &current_device() {
    static thread_local int device = 0;
    return device;
}

Stream *stream_of(cudaStream_t handle) {
    constexpr uintptr_t LAST_SPECIAL = 2;  // null, cudaStreamLegacy, cudaStreamPerThread
    if ((uintptr_t)handle > LAST_SPECIAL) return (Stream *)handle;
    static auto &defaults = *new std::vector<Stream *>(visible_devices().size() + 1);
    std::lock_guard guard(clock_lock);
    Stream *&stream = defaults.at(current_device());
    if (!stream) {
        stream = new Stream{current_device(), DEFAULT_STREAM_ID, 0, 0, {}, nullptr};
        streams.insert(stream);
    }
    return stream;
}

Stream *new_stream(int priority) {
    static uint32_t next = FIRST_STREAM_ID;
    std::lock_guard guard(clock_lock);
    auto *stream = new Stream{current_device(), next++, priority, 0, {}, nullptr};
    streams.insert(stream);
    return stream;
}

void remove_stream(Stream *stream) {  // its memory stays: an event may still name it
    std::lock_guard guard(clock_lock);
    streams.erase(stream);
}

std::vector<Stream *> streams_of_device(int device) {
    std::lock_guard guard(clock_lock);
    std::vector<Stream *> found;
    for (Stream *stream : streams)
        if (stream->device == device) found.push_back(stream);
    return found;
}

Nanoseconds begin(const Stream &stream, const Op &op) {
    return std::max(op.enqueued_ns + node().launch_ns, stream.end_ns);
}

void resolve_all() {
    for (bool any = true; any;) {  // one stream's operation may be what another stream waits for
        any = false;
        for (Stream *stream : streams) {
            auto &waiting = stream->waiting;
            while (!waiting.empty() && waiting.front().second(*stream, waiting.front().first)) {
                waiting.pop_front();
                any = true;
            }
        }
    }
}

void enqueue(Stream *stream, const MakeResolve &make) {
    std::lock_guard guard(clock_lock);
    if (stream->capture) {
        stream->capture->nodes.push_back(make);
        return;
    }
    Op op{now(), current_correlation()};
    Resolve resolve = make();
    if (stream->waiting.empty() && resolve(*stream, op)) return;
    start_progress();
    stream->waiting.push_back({op, resolve});
    work_came.notify_one();
}

void enqueue(Stream *stream, const Resolve &resolve) {
    enqueue(stream, MakeResolve([resolve] { return resolve; }));
}

void finish(Stream *stream) {
    for (;; usleep(POLL_US)) {
        Nanoseconds end;
        {
            std::lock_guard guard(clock_lock);
            resolve_all();
            if (!stream->waiting.empty() && !lasting_error(stream->device)) continue;
            end = stream->end_ns;
        }
        sleep_until(end);
        return;
    }
}

void enqueue_kernel(Stream *stream, Launch launch) {
    const Device &device = visible_device(stream->device);
    auto duration = (Nanoseconds)(planted_time(launch.name, launch.time_ns) * device.slowdown);
    enqueue(stream, Resolve([launch, duration](Stream &stream, const Op &op) {
        Nanoseconds start = begin(stream, op);
        stream.end_ns = start + duration;
        if (launch.effect) launch.effect();
        record_kernel({&stream, op.correlation, start, stream.end_ns}, launch);
        return true;
    }));
}

}  // namespace vgpu
