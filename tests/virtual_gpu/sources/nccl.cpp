// libnccl between processes of one host. A rank's arrival is a file in a folder of shared memory; a collective ends, on every rank, at the
// last arrival plus the planted transfer.
//
// Declarations: nccl.h of nvidia-nccl-cu13. Callers in libtorch_cuda: NCCLUtils.cpp and ProcessGroupNCCL.cpp (processes),
// torch/csrc/cuda/nccl.cpp (nn.DataParallel: ncclCommInitAll, ncclBcast, ncclReduce).
#define __CUDA_FP16_H__
#define __CUDA_BF16_H__
#define __CUDA_FP8_H__
#include <cupti_driver_cbid.h>
#include <fcntl.h>
#include <nccl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>

#include "errors.h"
#include "nccl_data.h"
#include "profiler.h"
#include "truth.h"

using namespace vgpu;

struct ncclComm {
    std::string folder;  // where its ranks meet; its name is the communicator's
    int rank, ranks;
    int device;                 // as CUDA counts in this process
    std::vector<int> physical;  // of each rank
    uint64_t collectives, splits;
    std::map<std::pair<int, int>, uint64_t> messages;  // by sender and receiver
    std::atomic<bool> aborted;
};

namespace {

constexpr int KEPT = 8;  // collectives whose files stay: a slower rank may still read the last one
constexpr dim3 GRID{24, 1, 1}, BLOCK{512, 1, 1};
std::atomic<int64_t> launched;  // collectives of this process

// Files

struct Header {
    Nanoseconds time_ns;
    size_t bytes;
};

void write_whole(int file, const void *data, size_t bytes) {
    auto *start = (const char *)data;
    while (bytes) {
        ssize_t written = write(file, start, bytes);
        if (written <= 0) {
            perror("virtual NCCL: the folder where ranks meet");
            abort();
        }
        start += written;
        bytes -= written;
    }
}

void post(const std::string &path, Nanoseconds time, const void *data, size_t bytes) {
    std::string part = path + ".part";
    int file = open(part.c_str(), O_CREAT | O_WRONLY | O_TRUNC, 0600);
    Header header{time, bytes};
    write_whole(file, &header, sizeof header);
    write_whole(file, data, bytes);
    close(file);
    rename(part.c_str(), path.c_str());
}

class Arrival {  // another rank's file, mapped as soon as it is there
  public:
    explicit Arrival(std::string path) : path_(std::move(path)) {}
    Arrival(Arrival &&other) noexcept : path_(std::move(other.path_)), header_(other.header_), size_(other.size_) {
        other.header_ = nullptr;
    }
    ~Arrival() {
        if (header_) munmap((void *)header_, size_);
    }

    bool is_there() {
        if (header_) return true;
        int file = open(path_.c_str(), O_RDONLY);
        if (file < 0) return false;
        struct stat status;
        fstat(file, &status);
        size_ = status.st_size;
        header_ = (const Header *)mmap(nullptr, size_, PROT_READ, MAP_SHARED, file, 0);
        close(file);
        return true;
    }

    Nanoseconds time() const { return header_->time_ns; }
    size_t bytes() const { return header_->bytes; }
    const char *data() const { return (const char *)(header_ + 1); }
    void remove() const { unlink(path_.c_str()); }

  private:
    std::string path_;
    const Header *header_ = nullptr;
    size_t size_ = 0;
};

// Waits, on the host, until all ranks have come with their data.
bool meet(const std::string &stem, int rank, int ranks, const std::string &data, std::vector<std::string> *all) {
    constexpr int TRIES = 240'000;
    constexpr useconds_t POLL_US = 500;
    post(stem + std::to_string(rank), now(), data.data(), data.size());
    for (int peer = 0; peer < ranks; peer++) {
        Arrival arrival(stem + std::to_string(peer));
        int tries = 0;
        for (; !arrival.is_there() && tries < TRIES; tries++) usleep(POLL_US);
        if (tries == TRIES) return false;
        if (all) all->emplace_back(arrival.data(), arrival.bytes());
    }
    return true;
}

// Planted faults

const Fault *fault_of(const char *kind) {
    for (const Fault &fault : node().faults) {
        bool here = fault.rank == ANY || fault.rank == rank();
        if (here && fault.kind == kind && launched >= fault.after) return &fault;
    }
    return nullptr;
}

// Times

Nanoseconds transfer_time(const ncclComm &comm, const std::vector<Collective> &group, const std::string &name) {
    double bytes = 0, carried = 0;
    for (const Collective &part : group) {
        bytes += (double)part.bytes();
        carried += part.carried_bytes();
    }
    const CollectiveTime &tier = collective_time(bytes);
    double gb_per_s = tier.gb_per_s;
    for (int rank = 0; !tier.gb_per_s && rank < comm.ranks; rank++) {  // the ring goes by rank
        int next = comm.physical[(rank + 1) % comm.ranks];
        double link = node().links[comm.physical[rank]][next].gb_per_s;
        gb_per_s = gb_per_s ? std::min(gb_per_s, link) : link;
    }
    return planted_time(name.c_str(), tier.latency_ns + (Nanoseconds)(carried / gb_per_s));
}

// Launches

struct Task {
    Collective collective;
    ncclComm *comm;
    Stream *stream;
};

const char *kept_name(const std::string &name) {  // a record holds a pointer
    static auto &names = *new std::map<std::string, std::string>;
    std::lock_guard guard(clock_lock);
    return names.emplace(name, name).first->second.c_str();
}

// One execution of tasks of one communicator and stream: one kernel.
class Execution {
  public:
    explicit Execution(std::vector<Task> tasks) : tasks_(std::move(tasks)), comm_(*tasks_[0].comm) {
        std::vector<Collective> group;
        for (const Task &task : tasks_) {
            group.push_back(task.collective);
            name_files(task.collective);
        }
        const CollectiveTime &tier = collective_time((double)group[0].bytes());
        name_ = kept_name(kernel_name(group[0], tier.algorithm));
        transfer_ns_ = transfer_time(comm_, group, name_);
        stays_away_ = fault_of("never_arrives") || fault_of("async_error");
        launched++;
    }

    bool resolve(Stream &stream, const Op &op) {
        if (!started_) arrive(stream, op);
        if (comm_.aborted) {
            finish(stream, op, std::max(start_ns_, now()));
            return true;
        }
        if (stays_away_ || !all_arrived()) return false;
        for (size_t i = 0; i < tasks_.size(); i++) move(i);
        finish(stream, op, last_arrival() + transfer_ns_);
        return true;
    }

  private:
    std::vector<Task> tasks_;
    ncclComm &comm_;
    std::vector<std::string> own_paths_;
    std::vector<std::vector<Arrival>> arrivals_;  // by task, of every rank, or of a message's other side
    const char *name_;
    uint64_t sequence_ = 0;
    Nanoseconds transfer_ns_, start_ns_ = 0;
    bool started_ = false, stays_away_;

    void name_files(const Collective &part) {
        arrivals_.emplace_back();
        if (part.is_message()) {
            bool sends = part.kind == Kind::SEND;
            std::pair<int, int> way = sends ? std::pair(comm_.rank, part.root) : std::pair(part.root, comm_.rank);
            std::string stem = comm_.folder + "/message-" + std::to_string(way.first) + "-" + std::to_string(way.second);
            stem += "-" + std::to_string(comm_.messages[way]++);
            own_paths_.push_back(stem + (sends ? "-sent" : "-received"));
            arrivals_.back().emplace_back(stem + (sends ? "-received" : "-sent"));
            return;
        }
        sequence_ = comm_.collectives++;
        own_paths_.push_back(path_of(sequence_, comm_.rank));
        for (int rank = 0; rank < comm_.ranks; rank++) arrivals_.back().emplace_back(path_of(sequence_, rank));
    }

    std::string path_of(uint64_t sequence, int rank) const {
        return comm_.folder + "/" + std::to_string(sequence) + "-" + std::to_string(rank);
    }

    static bool moved(const Collective &part) { return (double)part.bytes() <= node().largest_moved_bytes; }

    void arrive(const Stream &stream, const Op &op) {
        started_ = true;
        start_ns_ = begin(stream, op);
        for (size_t i = 0; i < tasks_.size() && !stays_away_; i++) {
            const Collective &part = tasks_[i].collective;
            post(own_paths_[i], start_ns_, part.from, moved(part) ? part.sent_bytes() : 0);
        }
        if (sequence_ >= KEPT) unlink(path_of(sequence_ - KEPT, comm_.rank).c_str());
    }

    bool all_arrived() {
        for (auto &of_task : arrivals_)
            for (Arrival &arrival : of_task)
                if (!arrival.is_there()) return false;
        return true;
    }

    // A broadcast waits for its root alone, and a reduction's other ranks wait for nobody but the root.
    bool waits_for(const Collective &part, int rank) const {
        if (part.kind == Kind::BROADCAST || part.kind == Kind::SCATTER) return rank == part.root || rank == comm_.rank;
        bool to_root = part.kind == Kind::REDUCE || part.kind == Kind::GATHER;
        return !to_root || comm_.rank == part.root || rank == comm_.rank;
    }

    Nanoseconds last_arrival() const {
        Nanoseconds last = start_ns_;
        for (size_t i = 0; i < tasks_.size(); i++) {
            const Collective &part = tasks_[i].collective;
            for (size_t rank = 0; rank < arrivals_[i].size(); rank++)
                if (part.is_message() || waits_for(part, (int)rank)) last = std::max(last, arrivals_[i][rank].time());
        }
        return last;
    }

    void move(size_t task) {
        const Collective &part = tasks_[task].collective;
        if (!moved(part)) return;
        std::vector<const char *> from;
        for (const Arrival &arrival : arrivals_[task]) from.push_back(arrival.data());
        move_data(part, from);
        if (part.kind == Kind::ALL_REDUCE && fault_of("corrupts")) ((char *)part.to)[part.bytes() - 1] ^= 1;
    }

    void finish(Stream &stream, const Op &op, Nanoseconds end) {
        stream.end_ns = end;
        record_kernel({&stream, op.correlation, start_ns_, end}, {name_, transfer_ns_, GRID, BLOCK, {}});
        note(stream, op);
        for (size_t i = 0; i < tasks_.size(); i++)
            if (tasks_[i].collective.is_message()) arrivals_[i][0].remove();
    }

    void note(const Stream &stream, const Op &op) const {
        if (comm_.aborted) return;
        std::vector<int64_t> times;
        double bytes = 0;
        for (const Task &task : tasks_) bytes += (double)task.collective.bytes();
        for (const Arrival &arrival : arrivals_[0]) times.push_back(arrival.time());
        Truth("collective")
            .text("name", name_)
            .text("communicator", comm_.folder.substr(comm_.folder.rfind('/') + 1))
            .count("sequence", (int64_t)sequence_)
            .count("rank", comm_.rank)
            .count("ranks", comm_.ranks)
            .count("correlation", op.correlation)
            .count("device", visible_device(stream.device).index)
            .count("stream", stream.id)
            .count("start_ns", start_ns_)
            .count("end_ns", stream.end_ns)
            .number("bytes", bytes)
            .count("transfer_ns", transfer_ns_)
            .counts("arrivals_ns", times);  // by rank; of a message the other side's
    }
};

void launch(const std::vector<Task> &tasks) {
    Call call(CUPTI_DRIVER_TRACE_CBID_cuLaunchKernelEx, true);  // NCCL launches by the driver
    enqueue(tasks[0].stream, MakeResolve([tasks] {
        auto execution = std::make_shared<Execution>(tasks);
        return Resolve([execution](Stream &stream, const Op &op) { return execution->resolve(stream, op); });
    }));
}

thread_local int group_depth;
thread_local std::vector<Task> grouped;
auto &factors = *new std::map<int, double>;  // of operations made by ncclRedOpCreatePreMulSum

double factor_of(int operation) {
    std::lock_guard guard(clock_lock);
    auto found = factors.find(operation);
    return found == factors.end() ? 1 : found->second;
}

struct Buffers {
    const void *from;
    void *to;
    size_t count;
};

ncclResult_t add(
    Kind kind, Buffers buffers, ncclDataType_t type, int operation, int root, ncclComm_t comm, cudaStream_t stream) {
    double factor = factor_of(operation);
    Collective part{kind, buffers.from, buffers.to, buffers.count, type, operation, factor, root, comm->rank, comm->ranks};
    Task task{part, comm, stream_of(stream)};
    if (lasting_error(task.stream->device)) return ncclUnhandledCudaError;
    if (group_depth) {
        grouped.push_back(task);
    } else {
        launch({task});
    }
    return ncclSuccess;
}

double scalar_of(const void *scalar, ncclDataType_t type) {
    if (type == ncclFloat64) return *(const double *)scalar;
    if (type == ncclFloat32) return *(const float *)scalar;
    if (type == ncclFloat16) return (double)*(const _Float16 *)scalar;
    uint32_t wide = (uint32_t) * (const uint16_t *)scalar << 16;  // bfloat16
    float number;
    memcpy(&number, &wide, sizeof number);
    return number;
}

std::string path_of(const ncclUniqueId &id) { return node().meeting_folder + "/" + id.internal; }

ncclComm *new_communicator(const std::string &folder, int rank, int ranks) {
    mkdir(folder.c_str(), 0700);
    return new ncclComm{folder, rank, ranks, current_device(), {}, 0, 0, {}, false};
}

bool meet_members(ncclComm *comm) {
    std::vector<std::string> devices;
    std::string own = std::to_string(visible_device(comm->device).index);
    if (!meet(comm->folder + "/member-", comm->rank, comm->ranks, own, &devices)) return false;
    for (const std::string &device : devices) comm->physical.push_back(std::stoi(device));
    return true;
}

}  // namespace

extern "C" {

ncclResult_t ncclGetVersion(int *version) {
    *version = NCCL_VERSION_CODE;
    return ncclSuccess;
}

const char *ncclGetErrorString(ncclResult_t error) {
    switch (error) {
    case ncclSuccess: return "no error";
    case ncclUnhandledCudaError: return "unhandled cuda error (run with NCCL_DEBUG=INFO for details)";
    case ncclSystemError: return "unhandled system error (run with NCCL_DEBUG=INFO for details)";
    case ncclRemoteError: return "remote process exited or there was a network error";
    default: return "error of the virtual NCCL";
    }
}

const char *ncclGetLastError(ncclComm_t) { return ""; }

ncclResult_t ncclGetUniqueId(ncclUniqueId *id) {
    static std::atomic<int> next;
    *id = {};
    snprintf(id->internal, sizeof id->internal, "nccl-%d-%llx-%d", getpid(), (long long)now(), next++);
    return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int ranks, ncclUniqueId id, int rank, ncclConfig_t *) {
    *comm = new_communicator(path_of(id), rank, ranks);
    return meet_members(*comm) ? ncclSuccess : ncclSystemError;
}

ncclResult_t ncclCommInitRank(ncclComm_t *comm, int ranks, ncclUniqueId id, int rank) {
    return ncclCommInitRankConfig(comm, ranks, id, rank, nullptr);
}

ncclResult_t ncclCommInitRankScalable(ncclComm_t *comm, int ranks, int rank, int, ncclUniqueId *ids, ncclConfig_t *config) {
    return ncclCommInitRankConfig(comm, ranks, ids[0], rank, config);
}

ncclResult_t ncclCommInitAll(ncclComm_t *comms, int ranks, const int *devices) {
    ncclUniqueId id;
    ncclGetUniqueId(&id);
    std::vector<int> physical;
    for (int rank = 0; rank < ranks; rank++) physical.push_back(visible_device(devices ? devices[rank] : rank).index);
    for (int rank = 0; rank < ranks; rank++) {
        comms[rank] = new_communicator(path_of(id), rank, ranks);
        comms[rank]->device = devices ? devices[rank] : rank;
        comms[rank]->physical = physical;
    }
    return ncclSuccess;
}

ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t *part, ncclConfig_t *) {
    struct Choice {
        int color, key;
    } own{color, key};
    std::vector<std::string> choices;
    std::string split = std::to_string(comm->splits++);
    std::string data((const char *)&own, sizeof own);
    if (!meet(comm->folder + "/split-" + split + "-", comm->rank, comm->ranks, data, &choices)) return ncclSystemError;
    *part = nullptr;
    if (color == NCCL_SPLIT_NOCOLOR) return ncclSuccess;
    std::vector<std::pair<int, int>> members;  // by key, then rank
    for (int rank = 0; rank < comm->ranks; rank++) {
        Choice choice;
        memcpy(&choice, choices[rank].data(), sizeof choice);
        if (choice.color == color) members.emplace_back(choice.key, rank);
    }
    std::sort(members.begin(), members.end());
    auto here = std::find_if(members.begin(), members.end(), [&](auto &member) { return member.second == comm->rank; });
    std::string folder = comm->folder + "." + split + "." + std::to_string(color);
    *part = new_communicator(folder, (int)(here - members.begin()), (int)members.size());
    for (auto &member : members) (*part)->physical.push_back(comm->physical[member.second]);
    return ncclSuccess;
}

ncclResult_t ncclCommCount(const ncclComm_t comm, int *ranks) {
    *ranks = comm->ranks;
    return ncclSuccess;
}

ncclResult_t ncclCommUserRank(const ncclComm_t comm, int *rank) {
    *rank = comm->rank;
    return ncclSuccess;
}

ncclResult_t ncclCommCuDevice(const ncclComm_t comm, int *device) {
    *device = comm->device;
    return ncclSuccess;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t, ncclResult_t *error) {
    const Fault *fault = fault_of("async_error");
    *error = fault ? (ncclResult_t)fault->error : ncclSuccess;
    return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t comm) {  // its memory stays: operations that wait still look at it
    comm->aborted = true;
    return ncclSuccess;
}

ncclResult_t ncclCommFinalize(ncclComm_t) { return ncclSuccess; }
ncclResult_t ncclCommDestroy(ncclComm_t) { return ncclSuccess; }

// ProcessGroupNCCL2 registers the allocator's memory.
ncclResult_t ncclCommRegister(ncclComm_t, void *buffer, size_t, void **handle) {
    *handle = buffer;
    return ncclSuccess;
}
ncclResult_t ncclCommDeregister(ncclComm_t, void *) { return ncclSuccess; }

ncclResult_t ncclMemAlloc(void **pointer, size_t bytes) { return cudaMalloc(pointer, bytes) ? ncclSystemError : ncclSuccess; }
ncclResult_t ncclMemFree(void *pointer) { return cudaFree(pointer) ? ncclSystemError : ncclSuccess; }

ncclResult_t ncclRedOpCreatePreMulSum(
    ncclRedOp_t *operation, void *scalar, ncclDataType_t type, ncclScalarResidence_t, ncclComm_t) {
    static int next = ncclNumOps;
    std::lock_guard guard(clock_lock);
    factors[next] = scalar_of(scalar, type);
    *operation = (ncclRedOp_t)next++;
    return ncclSuccess;
}

ncclResult_t ncclRedOpDestroy(ncclRedOp_t, ncclComm_t) { return ncclSuccess; }

ncclResult_t ncclGroupStart() {
    group_depth++;
    return ncclSuccess;
}

ncclResult_t ncclGroupEnd() {
    if (--group_depth) return ncclSuccess;
    std::vector<Task> rest;
    rest.swap(grouped);
    while (!rest.empty()) {
        const Task first = rest[0];
        auto other = [&](const Task &task) { return task.comm != first.comm || task.stream != first.stream; };
        auto end_of_others = std::stable_partition(rest.begin(), rest.end(), other);
        launch({end_of_others, rest.end()});
        rest.erase(end_of_others, rest.end());
    }
    return ncclSuccess;
}

ncclResult_t ncclAllReduce(
    const void *from, void *to, size_t count, ncclDataType_t type, ncclRedOp_t operation, ncclComm_t comm, cudaStream_t stream) {
    return add(Kind::ALL_REDUCE, {from, to, count}, type, operation, 0, comm, stream);
}

ncclResult_t ncclBroadcast(
    const void *from, void *to, size_t count, ncclDataType_t type, int root, ncclComm_t comm, cudaStream_t stream) {
    return add(Kind::BROADCAST, {from, to, count}, type, ncclSum, root, comm, stream);
}

ncclResult_t ncclBcast(void *both, size_t count, ncclDataType_t type, int root, ncclComm_t comm, cudaStream_t stream) {
    return add(Kind::BROADCAST, {both, both, count}, type, ncclSum, root, comm, stream);
}

ncclResult_t ncclReduce(
    const void *from, void *to, size_t count, ncclDataType_t type, ncclRedOp_t operation, int root, ncclComm_t comm,
    cudaStream_t stream) {
    return add(Kind::REDUCE, {from, to, count}, type, operation, root, comm, stream);
}

ncclResult_t ncclAllGather(
    const void *from, void *to, size_t count, ncclDataType_t type, ncclComm_t comm, cudaStream_t stream) {
    return add(Kind::ALL_GATHER, {from, to, count}, type, ncclSum, 0, comm, stream);
}

ncclResult_t ncclReduceScatter(
    const void *from, void *to, size_t count, ncclDataType_t type, ncclRedOp_t operation, ncclComm_t comm, cudaStream_t stream) {
    return add(Kind::REDUCE_SCATTER, {from, to, count}, type, operation, 0, comm, stream);
}

ncclResult_t ncclAlltoAll(const void *from, void *to, size_t count, ncclDataType_t type, ncclComm_t comm, cudaStream_t stream) {
    return add(Kind::ALL_TO_ALL, {from, to, count}, type, ncclSum, 0, comm, stream);
}

ncclResult_t ncclGather(
    const void *from, void *to, size_t count, ncclDataType_t type, int root, ncclComm_t comm, cudaStream_t stream) {
    return add(Kind::GATHER, {from, to, count}, type, ncclSum, root, comm, stream);
}

ncclResult_t ncclScatter(
    const void *from, void *to, size_t count, ncclDataType_t type, int root, ncclComm_t comm, cudaStream_t stream) {
    return add(Kind::SCATTER, {from, to, count}, type, ncclSum, root, comm, stream);
}

ncclResult_t ncclSend(const void *from, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream) {
    return add(Kind::SEND, {from, nullptr, count}, type, ncclSum, peer, comm, stream);
}

ncclResult_t ncclRecv(void *to, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream) {
    return add(Kind::RECV, {nullptr, to, count}, type, ncclSum, peer, comm, stream);
}

}  // extern "C"
