"""When each kernel and copy of one `nn.DataParallel` step runs, and where.

One row per kernel, one (start, duration) per device, in microseconds after the step's origin. A step's window begins
LEAD_US before its origin (where the previous step's last kernel ended), except the first, which begins at its first
event, 6 us after. Two devices use the first two columns.

The model: three fp32 parameters of 6, 6 and 3 MiB, buffers of 38,400 B (fp32) and 160 B (int64); 128 samples a device.
Broadcast chunks are closed once they reach 10 MiB (torch/csrc/utils/tensor_flatten.cpp), so 6 + 6 | 3; reduce chunks
never pass it (torch/_utils.py, _take_tensors), so 6 | 6 + 3.
"""

from tests.generated_traces.builder import DeviceWork

Slot = tuple[float, float]
Row = tuple[Slot, Slot, Slot, Slot]

LEAD_US = 24.0
PARAMETER_ELEMENTS = (1572864, 1572864, 786432)
BUFFER_ELEMENTS = (9600, 20)
INPUT_BYTES = 1572864  # 128 x 3 x 32 x 32 fp32
TARGET_BYTES = 1024  # 128 int64
OUTPUT_BYTES = 5120  # 128 x 10 fp32
BROADCAST_BYTES = (12582912, 3145728, 38400, 160)
REDUCE_BYTES = (6291456, 9437184)

COMPUTE_STREAM = 7
COPY_STREAM = 20

BROADCAST = "ncclDevKernel_Broadcast_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
REDUCE = "ncclDevKernel_Reduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
CONCATENATE = "void at::native::(anonymous namespace)::CatArrayBatchedCopy<float, unsigned int, 1, 64, 64>"
ADD = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>"

TARGETS: Slot = (6, 2)
INPUTS_TO_ROOT: Slot = (10, 40)
SCATTER_FROM_HOST: Row = ((12, 40), (14, 42), (16, 44), (18, 46))
SCATTER_FROM_ROOT: dict[int, Slot] = {1: (52, 5), 2: (58, 5), 3: (64, 5)}

# By broadcast chunk: the concatenation on device 0 (none for a chunk of one tensor), then the broadcast.
BROADCAST_CONCATENATIONS: tuple[Slot | None, ...] = ((70, 12), None, (170, 3), (188, 2))
BROADCASTS: tuple[Row, ...] = (
    ((84, 60), (85, 59), (86, 58), (87, 57)),
    ((150, 18), (151, 17), (152, 16), (153, 15)),
    ((176, 10), (177, 9), (178, 8), (179, 7)),
    ((192, 8), (193, 7), (194, 6), (195, 5)),
)
# The same by copies from device 0 to each other one.
BROADCAST_COPIES: tuple[dict[int, Slot], ...] = (
    {1: (84, 20), 2: (104, 20), 3: (124, 20)},
    {1: (150, 6), 2: (156, 6), 3: (162, 6)},
    {1: (176, 3), 2: (179, 3), 3: (182, 3)},
    {1: (192, 2), 2: (194, 2), 3: (196, 2)},
)

# The last kernel of device 1 takes 30 us more in the second step.
FORWARD: tuple[tuple[str, Row], ...] = (
    ("sm80_xmma_fprop_implicit_gemm_f32f32", ((214, 100), (216, 100), (218, 100), (220, 100))),
    ("void cudnn::bn_fw_tr_1C11_singleread<float>", ((320, 90), (321, 90), (322, 90), (323, 90))),
    ("ampere_sgemm_128x64_tn", ((412, 120.5), (414, 130), (416, 110), (418, 125))),
)
SECOND_STEP_DELAY: Slot = (1, 30)

OWN_OUTPUT: Slot = (580, 2)
GATHER: dict[int, Slot] = {1: (584, 4), 2: (585, 4), 3: (586, 4)}
LOSS: Slot = (594, 6)
LOSS_BACKWARD: Slot = (604, 8)
GRADIENT_SCATTER: dict[int, Slot] = {1: (616, 3), 2: (620, 3), 3: (624, 3)}
BACKWARD: tuple[tuple[str, Row], ...] = (
    ("ampere_sgemm_128x64_nn", ((630, 200), (632, 200), (634, 200), (636, 200))),
    ("void cudnn::bn_bw_1C11_singleread<float>", ((840, 180), (840, 170), (842, 160), (844, 150))),
    ("sm80_xmma_wgrad_implicit_gemm_indexed_f32f32", ((1024, 60), (1014, 80), (1006, 70), (998, 76))),
)

# By reduce chunk: the concatenation on every device (none for one tensor), then the reduction.
REDUCE_CONCATENATIONS: tuple[Slot | None, ...] = (None, (1142, 8))
REDUCES: tuple[Row, ...] = (
    ((1104, 36), (1105, 35), (1106, 34), (1107, 33)),
    ((1154, 50), (1155, 49), (1156, 48), (1157, 47)),
)
# The same by a copy from each other device to device 0, and an addition there.
REDUCE_COPIES: tuple[dict[int, Slot], ...] = (
    {1: (1104, 10), 2: (1116, 10), 3: (1128, 10)},
    {1: (1154, 14), 2: (1170, 14), 3: (1186, 14)},
)
REDUCE_ADDITIONS: tuple[dict[int, Slot], ...] = (
    {1: (1115, 3), 2: (1127, 3), 3: (1139, 3)},
    {1: (1169, 4), 2: (1185, 4), 3: (1201, 4)},
)

OPTIMIZER: Slot = (1220, 60)
OPTIMIZER_LAST: tuple[Slot, ...] = ((1284, 100), (1284, 120), (1284, 110))  # by step
ORIGINS_US = (0.0, 1408.0, 2836.0)  # LEAD_US after the end of the step before: 1384, then 2812
WINDOW_ENDS_US = (1384.0, 2812.0, 4230.0)


class StepPlan:
    """The device work of one step, placed in time."""

    def __init__(self, devices: int, step_index: int) -> None:
        self.devices = devices
        self.step_index = step_index
        self._origin = ORIGINS_US[step_index]

    def kernel(self, name: str, slot: Slot, device: int = 0) -> DeviceWork:
        return DeviceWork(device, COMPUTE_STREAM, name, self._origin + slot[0], slot[1])

    def kernels(self, name: str, row: Row) -> list[DeviceWork]:
        """The same kernel on every device, as one grouped NCCL call launches it."""
        return [self.kernel(name, row[device], device) for device in range(self.devices)]

    def from_host(self, slot: Slot, size: int, device: int = 0, stream: int = COMPUTE_STREAM) -> DeviceWork:
        name = "Memcpy HtoD (Pinned -> Device)"
        return DeviceWork(device, stream, name, self._origin + slot[0], slot[1], "gpu_memcpy", size)

    def copy(self, slot: Slot, size: int, source: int, target: int) -> DeviceWork:
        """A copy between devices runs on, and is recorded on, its source's compute stream."""
        is_peer = source != target
        name = f"Memcpy {'PtoP' if is_peer else 'DtoD'} (Device -> Device)"
        start, duration = self._origin + slot[0], slot[1]
        to_device = target if is_peer else None
        return DeviceWork(source, COMPUTE_STREAM, name, start, duration, "gpu_memcpy", size, to_device)

    def forward(self, device: int) -> list[DeviceWork]:
        works = [self.kernel(name, row[device], device) for name, row in FORWARD]
        if (self.step_index, device) == (1, SECOND_STEP_DELAY[0]):
            name, row = FORWARD[-1]
            works[-1] = self.kernel(name, (row[device][0], row[device][1] + SECOND_STEP_DELAY[1]), device)
        return works

    def backward(self, device: int) -> list[DeviceWork]:
        return [self.kernel(name, row[device], device) for name, row in BACKWARD]

    def optimizer(self) -> list[DeviceWork]:
        name = "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<BinaryOpListAlphaFunctor<float>>"
        return [self.kernel(name, OPTIMIZER), self.kernel(name, OPTIMIZER_LAST[self.step_index])]
