"""What a right analysis finds in the traces of `dp`: literals, worked out by hand from the table in `dp_schedule`.

Device 0, NCCL, inputs from the host, first step, as an example of the working (microseconds):
compute = 12 + 3 + 2 (concatenate) + 100 + 90 + 120.5 (forward) + 6 + 8 (loss) + 200 + 180 + 60 (backward)
+ 8 (concatenate) + 60 + 100 (optimizer) = 949.5; communication = 60 + 18 + 10 + 8 (broadcasts) + 3 (gradient to
device 1) + 36 + 50 (reductions) = 185; host copies = 2 + 40 + 2 = 44; the window runs from 6 to 1384; so
idle = 1378 - 949.5 - 185 = 243.5. Nothing overlaps on one device.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from tests.generated_traces.builder import ZERO_US
from tests.generated_traces.model import Expected, ExpectedPhase, ExpectedStep

PARAMETER_BYTES = 15728640
BUFFER_BYTES = 38560
REPLICATED_BYTES = 15767200
Triple = tuple[float, float, float]

WINDOWS_US = ((6.0, 1384.0), (1384.0, 2812.0), (2812.0, 4230.0))
STEP_US: Triple = (1378, 1428, 1418)
OWN_OUTPUT_US = 2  # gathered within device 0


@dataclass(frozen=True)
class _Row:
    """One device: per step where it differs between steps."""

    compute: Triple
    communication: float
    host_copy: float
    idle: Triple


# (transport, inputs, devices): device 0.
_ROOT = {
    ("nccl", "host", 2): _Row((949.5, 969.5, 959.5), 185, 42, (243.5, 273.5, 273.5)),
    ("nccl", "host", 4): _Row((949.5, 969.5, 959.5), 191, 42, (237.5, 267.5, 267.5)),
    ("nccl", "device", 2): _Row((949.5, 969.5, 959.5), 190, 42, (238.5, 268.5, 268.5)),
    ("nccl", "device", 4): _Row((949.5, 969.5, 959.5), 206, 42, (222.5, 252.5, 252.5)),
    ("peer_copy", "host", 2): _Row((956.5, 976.5, 966.5), 34, 42, (387.5, 417.5, 417.5)),
    ("peer_copy", "host", 4): _Row((970.5, 990.5, 980.5), 102, 42, (305.5, 335.5, 335.5)),
    ("peer_copy", "device", 2): _Row((956.5, 976.5, 966.5), 39, 42, (382.5, 412.5, 412.5)),
    ("peer_copy", "device", 4): _Row((970.5, 990.5, 980.5), 117, 42, (290.5, 320.5, 320.5)),
}
# (transport, inputs): devices 1, 2, 3.
_OTHERS = {
    ("nccl", "host"): (
        _Row((778, 808, 778), 180, 42, (420, 440, 460)),
        _Row((738, 738, 738), 174, 44, (466, 516, 506)),
        _Row((749, 749, 749), 168, 46, (461, 511, 501)),
    ),
    ("nccl", "device"): (
        _Row((778, 808, 778), 180, 0, (420, 440, 460)),
        _Row((738, 738, 738), 174, 0, (466, 516, 506)),
        _Row((749, 749, 749), 168, 0, (461, 511, 501)),
    ),
    ("peer_copy", "host"): (
        _Row((778, 808, 778), 28, 42, (572, 592, 612)),
        _Row((738, 738, 738), 28, 44, (612, 662, 652)),
        _Row((749, 749, 749), 28, 46, (601, 651, 641)),
    ),
    ("peer_copy", "device"): (
        _Row((778, 808, 778), 28, 0, (572, 592, 612)),
        _Row((738, 738, 738), 28, 0, (612, 662, 652)),
        _Row((749, 749, 749), 28, 0, (601, 651, 641)),
    ),
}

_PARALLEL_APPLY: tuple[Triple, ...] = ((310.5, 310.5, 310.5), (320, 350, 320), (300, 300, 300), (315, 315, 315))
_OPTIMIZER: Triple = (160, 180, 170)
_SCATTER_FROM_HOST = (40.0, 42.0, 44.0, 46.0)

# (inputs, devices): device 0. Bytes: 1,024 and 1,572,864 a device; the scatter leaves out device 0's share.
_HOST_TO_DEVICE = {
    ("host", 2): ExpectedPhase(2, copied_bytes=2048),
    ("host", 4): ExpectedPhase(2, copied_bytes=4096),
    ("device", 2): ExpectedPhase(42, copied_bytes=3147776),
    ("device", 4): ExpectedPhase(42, copied_bytes=6295552),
}
_SCATTER_FROM_ROOT = {
    2: ExpectedPhase(5, copied_bytes=1572864),
    4: ExpectedPhase(15, copied_bytes=4718592),
}

# (transport, devices): device 0. Concatenations 17, then four broadcasts 96, or copies 31 to each other device.
_REPLICATE_ROOT = {
    ("nccl", 2): ExpectedPhase(113, collective_count=4, collective_bytes=REPLICATED_BYTES),
    ("nccl", 4): ExpectedPhase(113, collective_count=4, collective_bytes=REPLICATED_BYTES),
    ("peer_copy", 2): ExpectedPhase(48, copied_bytes=15767200),
    ("peer_copy", 4): ExpectedPhase(110, copied_bytes=47301600),
}
_REPLICATE_OTHERS = (92.0, 88.0, 84.0)

# Device 0: loss 6 + 8, backward 440, and 3 to scatter the output's gradient to each other device.
_LOSS_BACKWARD_ROOT = {2: ExpectedPhase(457, copied_bytes=5120), 4: ExpectedPhase(463, copied_bytes=15360)}
_LOSS_BACKWARD_OTHERS = (450.0, 430.0, 426.0)

# Concatenation 8 on every device; reductions, or additions on device 0 (7 for each other device) and copies 24.
_GRADIENT_REDUCE_ROOT = {
    ("nccl", 2): ExpectedPhase(94, collective_count=2, collective_bytes=PARAMETER_BYTES),
    ("nccl", 4): ExpectedPhase(94, collective_count=2, collective_bytes=PARAMETER_BYTES),
    ("peer_copy", 2): ExpectedPhase(15),
    ("peer_copy", 4): ExpectedPhase(29),
}
_GRADIENT_REDUCE_OTHERS = (92.0, 90.0, 88.0)

# What is launched in each range and is not communication. (inputs): devices 0 to 3 in the forward range.
_FORWARD: dict[str, tuple[Triple, ...]] = {
    "host": ((375.5, 375.5, 375.5), (362, 392, 362), (344, 344, 344), (361, 361, 361)),
    "device": ((335.5, 335.5, 335.5), (320, 350, 320), (300, 300, 300), (315, 315, 315)),
}
_BACKWARD_ROOT = {("nccl", 2): 456.0, ("nccl", 4): 456.0, ("peer_copy", 2): 463.0, ("peer_copy", 4): 477.0}
_BACKWARD_OTHERS = (458.0, 438.0, 434.0)


def dp_expected(devices: int, transport: str, inputs: str, named_ranges: bool, steps: Sequence[int]) -> Expected:
    """The expectations of one variant, looked up."""
    rows = (_ROOT[transport, inputs, devices], *_OTHERS[transport, inputs][: devices - 1])
    table: dict[tuple[int | None, int], ExpectedStep] = {}
    for device, row in enumerate(rows):
        for index, step in enumerate(steps):
            table[device, step] = ExpectedStep(
                device,
                step,
                window_us=WINDOWS_US[index],
                step_us=STEP_US[index],
                compute_us=row.compute[index],
                communication_us=row.communication,
                hidden_us=0,
                exposed_us=row.communication,
                host_copy_us=row.host_copy,
                device_copy_us=OWN_OUTPUT_US if device == 0 else 0,
                idle_us=row.idle[index],
                partial_window=index == 0,
                collective_count=6 if transport == "nccl" else 0,
                phases=_phases(device, index, devices, transport, inputs),
                range_us=_ranges(device, index, devices, transport, inputs) if named_ranges else {},
            )
    return Expected(
        ZERO_US,
        table,
        gradient_bytes=PARAMETER_BYTES,
        parameter_bytes=PARAMETER_BYTES,
        buffer_bytes=BUFFER_BYTES,
    )


def _phases(device: int, index: int, devices: int, transport: str, inputs: str) -> dict[str, ExpectedPhase]:
    parallel_apply = ExpectedPhase(_PARALLEL_APPLY[device][index])
    from_host = {"scatter": ExpectedPhase(_SCATTER_FROM_HOST[device], copied_bytes=1572864)}
    scatter = from_host if inputs == "host" else {}
    if device > 0:
        return {
            **scatter,
            **_replicate_other(device, transport),
            "parallel_apply": parallel_apply,
            "gather": ExpectedPhase(4, copied_bytes=5120),
            "loss_backward": ExpectedPhase(_LOSS_BACKWARD_OTHERS[device - 1]),
            "gradient_reduce": _gradient_reduce_other(device, transport),
        }
    return {
        "host_to_device": _HOST_TO_DEVICE[inputs, devices],
        "scatter": scatter.get("scatter", _SCATTER_FROM_ROOT[devices]),
        "replicate": _REPLICATE_ROOT[transport, devices],
        "parallel_apply": parallel_apply,
        "gather": ExpectedPhase(2, copied_bytes=5120),
        "loss_backward": _LOSS_BACKWARD_ROOT[devices],
        "gradient_reduce": _GRADIENT_REDUCE_ROOT[transport, devices],
        "optimizer": ExpectedPhase(_OPTIMIZER[index]),
    }


def _replicate_other(device: int, transport: str) -> dict[str, ExpectedPhase]:
    if transport == "peer_copy":
        return {}  # the copies are device 0's
    time_us = _REPLICATE_OTHERS[device - 1]
    return {"replicate": ExpectedPhase(time_us, collective_count=4, collective_bytes=REPLICATED_BYTES)}


def _gradient_reduce_other(device: int, transport: str) -> ExpectedPhase:
    if transport == "peer_copy":
        return ExpectedPhase(32, copied_bytes=PARAMETER_BYTES)
    time_us = _GRADIENT_REDUCE_OTHERS[device - 1]
    return ExpectedPhase(time_us, collective_count=2, collective_bytes=PARAMETER_BYTES)


def _ranges(device: int, index: int, devices: int, transport: str, inputs: str) -> dict[str, float]:
    forward = _FORWARD[inputs][device][index]
    if device > 0:
        return {"forward": forward, "backward": _BACKWARD_OTHERS[device - 1]}
    return {
        "host_to_device": _HOST_TO_DEVICE[inputs, devices].time_us,
        "forward": forward,
        "backward": _BACKWARD_ROOT[transport, devices],
        "optimizer": _OPTIMIZER[index],
    }
