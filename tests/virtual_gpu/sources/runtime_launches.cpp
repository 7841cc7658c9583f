// libcudart: kernels, by the host functions that stand for them.
//
// nvcc's host code registers each kernel's mangled name (__cudaRegisterFunction) and launches by __cudaGetKernel and
// __cudaLaunchKernel; these have no header. Their arguments are those that `nvcc --dryrun --keep` shows in its .stub.c files.
#include <cupti_runtime_cbid.h>

#include <cstring>
#include <unordered_map>

#include "errors.h"
#include "profiler.h"

using namespace vgpu;

namespace {

struct Variable {
    void *memory;
    size_t bytes;
};

struct Configuration {
    dim3 grid, block;
    size_t shared_bytes;
    cudaStream_t stream;
};

auto &kernel_names = *new std::unordered_map<const void *, const char *>;
auto &variables = *new std::unordered_map<const void *, Variable>;
thread_local Configuration configuration;

size_t width_of_type(const char *mangled) {
    if (!strncmp(mangled, "N3c104HalfE", strlen("N3c104HalfE"))) return 2;
    if (!strncmp(mangled, "N3c108BFloat16E", strlen("N3c108BFloat16E"))) return 2;
    switch (*mangled) {
    case 'd':
    case 'l': return 8;
    case 'f':
    case 'i': return 4;
    case 's': return 2;
    case 'h':
    case 'a':
    case 'b': return 1;
    default: return 0;
    }
}

// The one kernel that is computed: a constant written to contiguous memory (torch.full, ones, fill_), so that the sums of
// collectives can be checked. Its arguments are (int count, FillFunctor value, char *pointers[1]): CUDALoops.cuh.
std::function<void()> effect_of(const char *name, void **arguments) {
    const char *functor = strstr(name, "FillFunctorI");
    if (!functor || !strstr(name, "vectorized_elementwise_kernel")) return {};
    size_t width = width_of_type(functor + strlen("FillFunctorI"));
    if (!width) return {};
    int count = *(int *)arguments[0];
    std::string value((char *)arguments[1], width);
    char *to = *(char **)arguments[2];
    return [=] {
        for (int i = 0; i < count; i++) memcpy(to + i * width, value.data(), width);
    };
}

Nanoseconds time_of(dim3 grid, dim3 block) {
    double threads = (double)grid.x * grid.y * grid.z * block.x * block.y * block.z;
    return node().kernel_ns + (Nanoseconds)(threads * node().ps_per_thread / 1000);
}

cudaError_t launch(uint32_t callback, const void *function, dim3 grid, dim3 block, void **arguments, cudaStream_t handle) {
    auto found = kernel_names.find(function);
    const char *name = found == kernel_names.end() ? "unregistered_kernel" : found->second;
    Stream *stream = stream_of(handle);
    delay_host(name);
    Call call(callback);
    if (cudaError_t error = launch_error(stream)) return failed(error);
    enqueue_kernel(stream, {name, time_of(grid, block), grid, block, effect_of(name, arguments)});
    return cudaSuccess;
}

}  // namespace

extern "C" {

void **__cudaRegisterFatBinary(void *) {
    static void *handle[1];
    return handle;
}

void __cudaRegisterFatBinaryEnd(void **) {}
void __cudaUnregisterFatBinary(void **) {}
char __cudaInitModule(void **) { return 1; }

void __cudaRegisterFunction(void **, const char *host, char *, const char *name, int, void *, void *, void *, void *, int *) {
    kernel_names[host] = name;
}

void __cudaRegisterVar(void **, char *host, char *, const char *, int, size_t bytes, int, int) {
    variables[host] = {calloc(1, bytes), bytes};
}

unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared_bytes, cudaStream_t stream) {
    configuration = {grid, block, shared_bytes, stream};
    return 0;
}

cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared_bytes, void *stream) {
    *grid = configuration.grid;
    *block = configuration.block;
    *shared_bytes = configuration.shared_bytes;
    *(cudaStream_t *)stream = configuration.stream;
    return cudaSuccess;
}

cudaError_t __cudaGetKernel(cudaKernel_t *kernel, const void *host) {
    *kernel = (cudaKernel_t)host;
    return cudaSuccess;
}

cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void **arguments, size_t, cudaStream_t stream) {
    return launch(CUPTI_RUNTIME_TRACE_CBID_cudaLaunchKernel_v7000, (const void *)kernel, grid, block, arguments, stream);
}

cudaError_t cudaLaunchKernel(const void *function, dim3 grid, dim3 block, void **arguments, size_t, cudaStream_t stream) {
    return launch(CUPTI_RUNTIME_TRACE_CBID_cudaLaunchKernel_v7000, function, grid, block, arguments, stream);
}

cudaError_t cudaLaunchCooperativeKernel(
    const void *function, dim3 grid, dim3 block, void **arguments, size_t, cudaStream_t stream) {
    return launch(CUPTI_RUNTIME_TRACE_CBID_cudaLaunchCooperativeKernel_v9000, function, grid, block, arguments, stream);
}

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *config, const void *function, void **arguments) {
    uint32_t callback = CUPTI_RUNTIME_TRACE_CBID_cudaLaunchKernelExC_v11060;
    return launch(callback, function, config->gridDim, config->blockDim, arguments, config->stream);
}

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes *attributes, const void *) {
    *attributes = {};
    attributes->maxThreadsPerBlock = 1024;
    attributes->numRegs = 32;
    attributes->binaryVersion = attributes->ptxVersion = 80;
    attributes->maxDynamicSharedSizeBytes = 48 << 10;
    return cudaSuccess;
}

cudaError_t cudaFuncSetAttribute(const void *, cudaFuncAttribute, int) { return cudaSuccess; }

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, const void *, int, size_t) {
    *blocks = 8;
    return cudaSuccess;
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, const void *, int, size_t, unsigned) {
    *blocks = 8;
    return cudaSuccess;
}

cudaError_t cudaGetSymbolAddress(void **pointer, const void *symbol) {
    *pointer = variables[symbol].memory;
    return cudaSuccess;
}

cudaError_t cudaMemcpyToSymbol(const void *symbol, const void *from, size_t bytes, size_t offset, cudaMemcpyKind) {
    memcpy((char *)variables[symbol].memory + offset, from, bytes);
    return cudaSuccess;
}

}  // extern "C"
