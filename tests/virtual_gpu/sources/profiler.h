// What the profiler is told of each operation and each call (cupti.cpp). The truth gets the same times.
#pragma once
#include "clock.h"

namespace vgpu {

struct Work {  // of a stream, when its times are known
    const Stream *stream;
    uint32_t correlation;
    Nanoseconds start_ns, end_ns;
};

constexpr int HOST = -1;

struct Copy {
    int from, to;  // devices of this process, or HOST
    size_t bytes;
    bool pinned;  // the host's memory
};

void record_kernel(const Work &work, const Launch &launch);
void record_copy(const Work &work, const Copy &copy);
void record_memset(const Work &work, int value, size_t bytes);
void record_wait(const Stream *stream, Nanoseconds start);  // of the host, until now; null: for the whole device

class Call {  // of the runtime or the driver: a record from its construction to its end
  public:
    explicit Call(uint32_t callback, bool of_driver = false);
    ~Call();
    Call(const Call &) = delete;

  private:
    Nanoseconds start_ns_;
    uint32_t callback_, correlation_, outer_;
    bool of_driver_;
};

uint32_t current_correlation();

}  // namespace vgpu
