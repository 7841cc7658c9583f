"""Calls of CUDA, NVML and NCCL by ctypes, without torch; prints what they return as JSON.

python -m tests.virtual_gpu.programs.calls NAME
"""

import ctypes
import json
import sys
import time
from collections.abc import Callable
from typing import Any

CUDA = ctypes.CDLL("libcudart.so.13")
DRIVER = ctypes.CDLL("libcuda.so.1")
NCCL = ctypes.CDLL("libnccl.so.2")
FLOAT32, SUM = 7, 0  # ncclFloat32, ncclSum


def devices() -> dict[str, Any]:
    """CUDA's devices by their PCI bus numbers, and NVML's count."""
    import pynvml

    pynvml.nvmlInit()
    buses = []
    for device in range(count_devices()):
        text = ctypes.create_string_buffer(20)
        CUDA.cudaDeviceGetPCIBusId(text, 20, device)
        buses.append(int(text.value.split(b":")[1], 16))
    return {"buses": buses, "nvml": pynvml.nvmlDeviceGetCount()}


def processes() -> dict[str, Any]:
    """What NVML answers about the processes on a device."""
    import pynvml

    pynvml.nvmlInit()
    try:
        found = pynvml.nvmlDeviceGetComputeRunningProcesses(pynvml.nvmlDeviceGetHandleByIndex(0))
    except Exception as error:
        return {"error": type(error).__name__}
    return {"processes": len(found)}


def memory() -> dict[str, Any]:
    """Which of 1, 2, 3, ... GiB in a row can be allocated."""
    answers = [
        CUDA.cudaMalloc(ctypes.byref(ctypes.c_void_p()), ctypes.c_size_t(gib << 30))
        for gib in range(1, 5)
    ]
    return {"answers": answers}


def copies() -> dict[str, Any]:
    """Copies of 1 MiB between the host and device 0, and between the first three devices; the peers
    of device 0.
    """
    size = 1 << 20
    host = ctypes.create_string_buffer(b"x" * size, size)
    places = []
    for device in range(3):
        CUDA.cudaSetDevice(device)
        pointer = ctypes.c_void_p()
        CUDA.cudaMalloc(ctypes.byref(pointer), ctypes.c_size_t(size))
        places.append(pointer)
    CUDA.cudaSetDevice(0)
    CUDA.cudaMemcpy(places[0], host, ctypes.c_size_t(size), 1)
    for target in (1, 2):
        CUDA.cudaMemcpyPeerAsync(places[target], target, places[0], 0, ctypes.c_size_t(size), None)
    back = ctypes.create_string_buffer(size)
    CUDA.cudaMemcpy(back, places[2], ctypes.c_size_t(size), 2)
    can = ctypes.c_int()
    peers = [
        CUDA.cudaDeviceCanAccessPeer(ctypes.byref(can), 0, device) or can.value
        for device in range(3)
    ]
    return {"same": back.raw == host.raw, "peers": peers}


def kernels() -> dict[str, Any]:
    """Three launches on each device, what each returned, and what waiting for the device
    returned.
    """
    answers = {}
    for device in range(count_devices()):
        CUDA.cudaSetDevice(device)
        launches = [launch(b"planted_kernel") for _ in range(3)]
        answers[device] = [*launches, CUDA.cudaDeviceSynchronize()]
    return {"answers": answers}


def late_host() -> dict[str, Any]:
    began_s = time.monotonic()
    launch(b"other_kernel")
    between_s = time.monotonic()
    launch(b"late_kernel")
    return {"other_s": between_s - began_s, "late_s": time.monotonic() - between_s}


def collective() -> dict[str, Any]:
    """An all-reduce of one float on two devices of this process: what waiting for it returns,
    before and after it is aborted.
    """
    communicators = (ctypes.c_void_p * 2)()
    NCCL.ncclCommInitAll(communicators, 2, None)
    streams = []
    for device in range(2):
        CUDA.cudaSetDevice(device)
        stream, place = ctypes.c_void_p(), ctypes.c_void_p()
        CUDA.cudaStreamCreate(ctypes.byref(stream))
        CUDA.cudaMalloc(ctypes.byref(place), ctypes.c_size_t(4))
        one = ctypes.c_void_p(communicators[device])
        NCCL.ncclAllReduce(place, place, ctypes.c_size_t(1), FLOAT32, SUM, one, stream)
        streams.append(stream)
    time.sleep(0.1)
    ended = [CUDA.cudaStreamQuery(stream) for stream in streams]
    error = ctypes.c_int()
    NCCL.ncclCommGetAsyncError(ctypes.c_void_p(communicators[0]), ctypes.byref(error))
    for communicator in communicators:
        NCCL.ncclCommAbort(ctypes.c_void_p(communicator))
    return {
        "ended": ended,
        "error": error.value,
        "aborted": [CUDA.cudaStreamSynchronize(stream) for stream in streams],
    }


def count_devices() -> int:
    count = ctypes.c_int()
    CUDA.cudaGetDeviceCount(ctypes.byref(count))
    return count.value


def launch(kernel: bytes) -> int:
    function = ctypes.c_void_p()
    DRIVER.cuModuleGetFunction(ctypes.byref(function), None, kernel)
    grid_and_block = (1, 1, 1, 32, 1, 1)
    answer: int = DRIVER.cuLaunchKernel(function, *grid_and_block, 0, None, None, None)
    return answer


SCENARIOS: dict[str, Callable[[], dict[str, Any]]] = {
    function.__name__: function
    for function in (devices, processes, memory, copies, kernels, late_host, collective)
}

if __name__ == "__main__":
    sys.stdout.write(json.dumps(SCENARIOS[sys.argv[1]]()))
