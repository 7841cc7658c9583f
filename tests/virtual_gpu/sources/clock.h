// Streams and their virtual clock. The README states the rules.
#pragma once
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include <cuda_runtime_api.h>

#include "node.h"

namespace vgpu {

struct Graph;
struct Stream;

struct Op {
    Nanoseconds enqueued_ns;  // the host's call
    uint32_t correlation;     // of that call
};

// Sets the stream's end and returns true; false: it waits for something outside this stream.
using Resolve = std::function<bool(Stream &, const Op &)>;
// Makes what one execution of an operation needs: a graph executes the same operation many times.
using MakeResolve = std::function<Resolve()>;

struct Stream {
    int device;  // as CUDA counts in this process
    uint32_t id;
    int priority;
    Nanoseconds end_ns;                          // when all that is resolved has ended
    std::deque<std::pair<Op, Resolve>> waiting;  // in the order of the calls
    std::shared_ptr<Graph> capture;
};

struct Graph {
    uint64_t id;
    bool invalid;
    std::vector<MakeResolve> nodes;  // in the order of the calls
    std::vector<Stream *> streams;   // while it is captured
};

struct Mark {  // one record of an event
    bool resolved = false;
    Nanoseconds time_ns = 0;
    std::shared_ptr<Graph> capture;
};

extern std::recursive_mutex &clock_lock;
Nanoseconds now();  // CLOCK_MONOTONIC, which all processes of a host share
void sleep_until(Nanoseconds time);

int &current_device();
Stream *stream_of(cudaStream_t handle);
Stream *new_stream(int priority);
void remove_stream(Stream *stream);
std::vector<Stream *> streams_of_device(int device);

void enqueue(Stream *stream, const MakeResolve &make);
void enqueue(Stream *stream, const Resolve &resolve);
Nanoseconds begin(const Stream &stream, const Op &op);  // of an operation that is first in its stream
void resolve_all();                                     // what can be resolved now; the lock is held
void finish(Stream *stream);                            // sleeps until the stream's virtual end

struct Launch {
    const char *name;
    Nanoseconds time_ns;
    dim3 grid = {1, 1, 1}, block = {128, 1, 1};
    std::function<void()> effect;  // what the kernel writes, where it writes anything
};

void enqueue_kernel(Stream *stream, Launch launch);

// Planted faults (faults.cpp).
void delay_host(const char *kernel);                                 // sleeps where this rank is late
cudaError_t launch_error(const Stream *stream);                      // of the next launch
cudaError_t lasting_error(int device);                               // sticky, or of a device that is lost

}  // namespace vgpu
