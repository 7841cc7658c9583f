"""When each kernel and copy of one DistributedDataParallel step runs on one rank's device.

(start, duration) in microseconds after the step's origin, which is LEAD_US after the end of the step before. Roles:
`even` (no rank is late), `late` (this rank begins its backward DELAY_US late) and `waiting` (another rank does).
What is known of the collectives is in `ddp_expected`.
"""

from dataclasses import dataclass
from typing import Literal

from tests.generated_traces.nccl_names import Generation

Slot = tuple[float, float]
Role = Literal["even", "late", "waiting"]
Metadata = Literal["kernel", "no_sequence", "partial", "ops", "none"]

LEAD_US = 24.0
DELAY_US = 500.0

INPUT_BYTES = 1572864  # 128 x 3 x 32 x 32 fp32
TARGET_BYTES = 1024  # 128 int64
LAST_BUCKET_BYTES = 2000000

INPUTS: Slot = (6, 30)
TARGETS: Slot = (38, 2)
FORWARD: tuple[Slot, ...] = ((70, 194), (268, 100))
LOSS: Slot = (372, 8)
# With `lag`, the next step's inputs are copied during this one, next to the optimizer.
PREFETCH: Slot = (738, 30)

# From here on a late rank is DELAY_US later.
BACKWARD: tuple[Slot, ...] = ((384, 100), (488, 100), (590, 60), (654, 20))
MEMSET: Slot = (680, 4)
# From here on every rank is DELAY_US later when one is late.
BUCKET_COPY: Slot = (736, 6)
OPTIMIZER: tuple[Slot, ...] = ((750, 60), (750, 66), (750, 72))  # by step

# Without a late rank; with one they are 500 us later.
ORIGINS_US = (0.0, 834.0, 1674.0)  # 810 + 24, then 834 + 816 + 24
WINDOW_ENDS_US = (810.0, 1650.0, 2496.0)
LATE_ORIGINS_US = (0.0, 1334.0, 2674.0)
LATE_WINDOW_ENDS_US = (1310.0, 2650.0, 3996.0)


@dataclass(frozen=True)
class DdpOptions:
    """How a trace differs from the plain one.

    `metadata`: "kernel": on kernels and on their `record_param_comms`; "no_sequence": the same without `Seq`;
    "partial": missing on the kernels of the broadcasts and the first bucket, present on their operators; "ops": only
    `Input Dims` and `Input type` of the operators; "none": nowhere.
    `lag`: the GPU is more than a step behind, and the next step's inputs are copied during the step before.
    `unlaunched`: two kernels whose launch came before the trace.
    `straggler`: the rank that begins each backward 500 us late.
    `communication`: False leaves out every NCCL kernel and keeps the operators.
    `extra_groups`: an all-to-all, and an all-gather and a reduce-scatter in a group of two ranks.
    """

    metadata: Metadata = "kernel"
    kernel_names: Generation = "nccl_2_19"
    lag: bool = False
    unlaunched: bool = False
    straggler: int | None = None
    communication: bool = True
    buffers: bool = True
    extra_groups: bool = False
    named_ranges: bool = True

    def role(self, rank: int) -> Role:
        if self.straggler is None:
            return "even"
        return "late" if self.straggler == rank else "waiting"


@dataclass(frozen=True)
class Collective:
    """One collective that a step requests; `after` names the work it follows in the program."""

    key: str
    kind: str
    group: str  # "world" or "pair"
    in_elements: int
    out_elements: int
    dtype: str
    element_type: str
    after: str


COLLECTIVES = (
    Collective("buffers", "broadcast", "world", 9600, 9600, "Float", "float", "load"),
    Collective("counters", "broadcast", "world", 20, 20, "Long", "long int", "load"),
    Collective("gather", "all_gather", "pair", 25000, 50000, "Float", "float", "forward0"),
    Collective("exchange", "all_to_all", "world", 10000, 10000, "Float", "float", "forward0"),
    Collective("bucket0", "all_reduce", "world", 1500000, 1500000, "Float", "float", "backward0"),
    Collective("scatter", "reduce_scatter", "pair", 100000, 50000, "Float", "float", "backward0"),
    Collective("bucket1", "all_reduce", "world", 2880000, 2880000, "Float", "float", "backward1"),
    Collective("bucket2", "all_reduce", "world", 500000, 500000, "Float", "float", "backward3"),
)

# When each runs, by role; the even ranks' last one begins up to 3 us early by rank and ends with the others'.
_FORWARD_TIMES: dict[str, Slot] = {"buffers": (44, 12), "counters": (58, 6), "gather": (270, 20), "exchange": (300, 10)}
TIMES: dict[Role, dict[str, Slot]] = {
    "even": {**_FORWARD_TIMES, "bucket0": (490, 60), "scatter": (500, 16), "bucket1": (594, 96), "bucket2": (694, 40)},
    "late": {**_FORWARD_TIMES, "bucket0": (990, 60), "bucket1": (1094, 96), "bucket2": (1194, 40)},
    "waiting": {**_FORWARD_TIMES, "bucket0": (490, 560), "bucket1": (1054, 136), "bucket2": (1194, 40)},
}
EVEN_EARLY_US = (0.0, 3.0, 1.0, 2.0)  # by rank, of bucket2

# Launched before the trace began: on the compute stream before the first step, on NCCL's stream within it.
UNLAUNCHED_COMPUTE: Slot = (-180, 60)
UNLAUNCHED_ALL_REDUCE: Slot = (10, 20)
