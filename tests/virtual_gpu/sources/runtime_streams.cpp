// libcudart: streams, events and graphs.
//
// Declarations: cuda_runtime_api.h. Callers: CUDAStream.cpp, CUDAEvent.h, CUDAGraph.cpp, CUDACachingAllocator.cpp,
// ProcessGroupNCCL.cpp.
#include <cupti_runtime_cbid.h>
#include <unistd.h>

#include <algorithm>
#include <thread>

#include "errors.h"
#include "profiler.h"
#include "truth.h"

using namespace vgpu;

namespace {

struct Event {
    bool timed;
    std::shared_ptr<Mark> mark;  // of its last record
};

using GraphHandle = std::shared_ptr<Graph>;
constexpr useconds_t EVENT_POLL_US = 1000;

std::shared_ptr<Mark> mark_of(cudaEvent_t event) {
    std::lock_guard guard(clock_lock);
    return ((Event *)event)->mark;
}

// A call that would wait is forbidden while a stream of this device is captured, and spoils the capture.
bool spoils_capture() {
    std::lock_guard guard(clock_lock);
    bool spoiled = false;
    for (Stream *stream : streams_of_device(current_device())) {
        if (!stream->capture) continue;
        stream->capture->invalid = true;
        spoiled = true;
    }
    return spoiled;
}

void note_event(const Stream &stream, Nanoseconds time) {
    int device = visible_device(stream.device).index;
    Truth("event").count("device", device).count("stream", stream.id).count("time_ns", time);
}

cudaError_t record_event(cudaEvent_t event, cudaStream_t handle) {
    if (cudaError_t error = broken()) return error;
    Stream *stream = stream_of(handle);
    auto mark = std::make_shared<Mark>();
    std::lock_guard guard(clock_lock);
    auto *recorded = (Event *)event;
    recorded->mark = mark;
    mark->capture = stream->capture;
    if (mark->capture) return cudaSuccess;  // it only joins streams to the capture
    enqueue(stream, Resolve([mark, timed = recorded->timed](Stream &stream, const Op &op) {
        mark->time_ns = std::max(stream.end_ns, op.enqueued_ns);
        mark->resolved = true;
        if (timed) note_event(stream, mark->time_ns);
        return true;
    }));
    resolve_all();
    return cudaSuccess;
}

void join_capture(Stream *stream, const std::shared_ptr<Graph> &graph) {
    if (stream->capture) return;
    stream->capture = graph;
    graph->streams.push_back(stream);
}

}  // namespace

extern "C" {

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned, int priority) {
    *stream = (cudaStream_t)new_stream(priority);
    return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags) {
    return cudaStreamCreateWithPriority(stream, flags, 0);
}

cudaError_t cudaStreamCreate(cudaStream_t *stream) { return cudaStreamCreateWithPriority(stream, 0, 0); }

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
    finish(stream_of(stream));
    remove_stream((Stream *)stream);
    return cudaSuccess;
}

cudaError_t cudaStreamGetPriority(cudaStream_t stream, int *priority) {
    *priority = stream_of(stream)->priority;
    return cudaSuccess;
}

cudaError_t cudaStreamQuery(cudaStream_t handle) {
    if (cudaError_t error = broken()) return error;
    Stream *stream = stream_of(handle);
    std::lock_guard guard(clock_lock);
    resolve_all();
    return stream->waiting.empty() && now() >= stream->end_ns ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaStreamSynchronize(cudaStream_t handle) {
    Call call(CUPTI_RUNTIME_TRACE_CBID_cudaStreamSynchronize_v3020);
    Stream *stream = stream_of(handle);
    if (stream->capture && spoils_capture()) return failed(cudaErrorStreamCaptureUnsupported);
    Nanoseconds start = now();
    finish(stream);
    record_wait(stream, start);
    return broken();
}

cudaError_t cudaDeviceSynchronize() {
    Call call(CUPTI_RUNTIME_TRACE_CBID_cudaDeviceSynchronize_v3020);
    if (spoils_capture()) return failed(cudaErrorStreamCaptureUnsupported);
    Nanoseconds start = now();
    for (Stream *stream : streams_of_device(current_device())) finish(stream);
    record_wait(nullptr, start);
    return broken();
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void *data) {
    enqueue(stream_of(stream), Resolve([=](Stream &stream, const Op &) {
        if (now() < stream.end_ns) return false;
        std::thread(function, data).detach();
        return true;
    }));
    return cudaSuccess;
}

// Events

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags) {
    Call call(CUPTI_RUNTIME_TRACE_CBID_cudaEventCreateWithFlags_v3020);
    *event = (cudaEvent_t) new Event{!(flags & cudaEventDisableTiming), nullptr};
    return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t *event) { return cudaEventCreateWithFlags(event, 0); }

cudaError_t cudaEventDestroy(cudaEvent_t event) {
    delete (Event *)event;
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
    Call call(CUPTI_RUNTIME_TRACE_CBID_cudaEventRecord_v3020);
    return record_event(event, stream);
}

cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned) {
    Call call(CUPTI_RUNTIME_TRACE_CBID_cudaEventRecordWithFlags_v11010);
    return record_event(event, stream);
}

cudaError_t cudaStreamWaitEvent(cudaStream_t handle, cudaEvent_t event, unsigned) {
    Call call(CUPTI_RUNTIME_TRACE_CBID_cudaStreamWaitEvent_v3020);
    std::shared_ptr<Mark> mark = mark_of(event);
    if (!mark) return cudaSuccess;  // never recorded
    Stream *stream = stream_of(handle);
    if (mark->capture) {
        std::lock_guard guard(clock_lock);
        join_capture(stream, mark->capture);
        return cudaSuccess;
    }
    enqueue(stream, Resolve([mark](Stream &stream, const Op &) {
        if (!mark->resolved) return false;
        stream.end_ns = std::max(stream.end_ns, mark->time_ns);
        return true;
    }));
    return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
    Call call(CUPTI_RUNTIME_TRACE_CBID_cudaEventQuery_v3020);
    if (cudaError_t error = broken()) return error;
    std::shared_ptr<Mark> mark = mark_of(event);
    std::lock_guard guard(clock_lock);
    resolve_all();
    bool passed = !mark || (mark->resolved && now() >= mark->time_ns);
    return passed ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
    Call call(CUPTI_RUNTIME_TRACE_CBID_cudaEventSynchronize_v3020);
    std::shared_ptr<Mark> mark = mark_of(event);
    for (; mark; usleep(EVENT_POLL_US)) {
        if (cudaError_t error = broken()) return error;
        std::lock_guard guard(clock_lock);
        resolve_all();
        if (mark->resolved) break;
    }
    if (mark) sleep_until(mark->time_ns);
    return cudaSuccess;
}

cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t from, cudaEvent_t to) {
    std::shared_ptr<Mark> start = mark_of(from);
    std::shared_ptr<Mark> end = mark_of(to);
    if (!start || !end) return failed(cudaErrorInvalidResourceHandle);
    std::lock_guard guard(clock_lock);
    resolve_all();
    bool passed = start->resolved && end->resolved && now() >= end->time_ns;
    if (!passed) return failed(cudaErrorNotReady);
    *milliseconds = (float)((double)(end->time_ns - start->time_ns) / 1e6);
    return cudaSuccess;
}

// Graphs: what a captured stream, and those that joined it by its events, would have done, in the order of the calls.

cudaError_t cudaStreamBeginCapture(cudaStream_t handle, cudaStreamCaptureMode) {
    static uint64_t next_id = 1;
    std::lock_guard guard(clock_lock);
    Stream *stream = stream_of(handle);
    stream->capture = std::make_shared<Graph>(Graph{next_id++, false, {}, {stream}});
    return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t handle, cudaGraph_t *graph) {
    std::lock_guard guard(clock_lock);
    std::shared_ptr<Graph> captured = stream_of(handle)->capture;
    if (!captured) return failed(cudaErrorIllegalState);
    for (Stream *stream : captured->streams) stream->capture = nullptr;
    *graph = captured->invalid ? nullptr : (cudaGraph_t) new GraphHandle(captured);
    return captured->invalid ? failed(cudaErrorStreamCaptureInvalidated) : cudaSuccess;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t handle, cudaStreamCaptureStatus *status) {
    std::lock_guard guard(clock_lock);
    std::shared_ptr<Graph> graph = stream_of(handle)->capture;
    *status = cudaStreamCaptureStatusNone;
    if (graph) *status = graph->invalid ? cudaStreamCaptureStatusInvalidated : cudaStreamCaptureStatusActive;
    return cudaSuccess;
}

cudaError_t cudaStreamGetCaptureInfo(
    cudaStream_t handle, cudaStreamCaptureStatus *status, unsigned long long *id, cudaGraph_t *graph,
    const cudaGraphNode_t **dependencies, const cudaGraphEdgeData **edges, size_t *count) {
    cudaStreamIsCapturing(handle, status);
    std::lock_guard guard(clock_lock);
    std::shared_ptr<Graph> captured = stream_of(handle)->capture;
    if (id) *id = captured ? captured->id : 0;
    if (graph) *graph = (cudaGraph_t)captured.get();
    if (dependencies) *dependencies = nullptr;
    if (edges) *edges = nullptr;
    if (count) *count = 0;
    return cudaSuccess;
}

cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t *executable, cudaGraph_t graph, unsigned long long) {
    *executable = (cudaGraphExec_t) new GraphHandle(*(GraphHandle *)graph);
    return cudaSuccess;
}

cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t *, size_t *count) {
    *count = (*(GraphHandle *)graph)->nodes.size();
    return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
    delete (GraphHandle *)graph;
    return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) {
    delete (GraphHandle *)executable;
    return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream) {
    Call call(CUPTI_RUNTIME_TRACE_CBID_cudaGraphLaunch_v10000);
    if (cudaError_t error = broken()) return error;
    for (const MakeResolve &make : (*(GraphHandle *)executable)->nodes) enqueue(stream_of(stream), make);
    return cudaSuccess;
}

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode *mode) {
    *mode = cudaStreamCaptureModeGlobal;
    return cudaSuccess;
}

}  // extern "C"
