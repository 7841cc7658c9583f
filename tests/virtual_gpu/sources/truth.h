// The truth: what really ran, a line of JSON each, in a file per process.
#pragma once
#include <string>
#include <vector>

#include "node.h"

namespace vgpu {

class Truth {  // one line, written when it goes out of scope
  public:
    explicit Truth(const char *kind);
    ~Truth();
    Truth(const Truth &) = delete;
    Truth &number(const char *name, double value);
    Truth &count(const char *name, int64_t value);
    Truth &text(const char *name, const std::string &value);
    Truth &counts(const char *name, const std::vector<int64_t> &values);

  private:
    std::string line_;
    void name_field(const char *name);
};

}  // namespace vgpu

extern "C" int vgpu_stub(const char *name, int answer);  // what every stub calls; noted once per name
