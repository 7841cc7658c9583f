// What NCCL's collectives do to data, and how they are named.
#pragma once
#include <cstddef>
#include <string>
#include <vector>

namespace vgpu {

enum class Kind { ALL_REDUCE, BROADCAST, REDUCE, ALL_GATHER, REDUCE_SCATTER, ALL_TO_ALL, GATHER, SCATTER, SEND, RECV };

struct Collective {  // one rank's part
    Kind kind;
    const void *from;
    void *to;
    size_t count;
    int type;       // ncclDataType_t
    int operation;  // ncclRedOp_t
    double factor;  // of an operation made by ncclRedOpCreatePreMulSum, else 1
    int root;       // or the peer of a message
    int rank, ranks;

    size_t bytes() const;       // of count elements
    size_t sent_bytes() const;  // what this rank gives to the others
    double carried_bytes() const;  // over each link of a ring
    bool is_message() const { return kind == Kind::SEND || kind == Kind::RECV; }
};

std::string kernel_name(const Collective &collective, const std::string &algorithm);
void move_data(const Collective &collective, const std::vector<const char *> &from);  // from each rank

}  // namespace vgpu
