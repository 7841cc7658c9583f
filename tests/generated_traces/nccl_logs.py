"""nccl-tests logs of made-up clusters: known times, noise, bad counts and planted cliffs, on
several shapes of network.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

PER_NODE = 4
COUNTS = tuple(4 << step for step in range(10))  # 4 to 2,048
SIZES = tuple(1 << power for power in range(16, 29))  # 64 KiB to 256 MiB
_HEADING = """#
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw  #wrong     time   algbw   busbw  #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)             (us)  (GB/s)  (GB/s)
"""

Truth = Callable[[int, int], float]
"""(devices, bytes) -> microseconds of an all-reduce, without noise."""


def _ring_factor(devices: int) -> float:
    return 2 * (devices - 1) / devices


def _network(
    latency_us: float,
    per_doubling_us: float,
    gb_per_s: float,
    narrow: Callable[[int], float] = lambda nodes: 1.0,
) -> Truth:
    """Within a node NVLink; between nodes a tree's latency and a rate that `narrow` divides by node
    count.
    """

    def time_us(devices: int, size: int) -> float:
        nodes = devices // PER_NODE
        if nodes <= 1:
            return 12.0 + _ring_factor(devices) * size / 200e3
        rate = gb_per_s / narrow(nodes) * 1e3
        return latency_us + per_doubling_us * math.log2(nodes) + _ring_factor(devices) * size / rate

    return time_us


def _ring_or_tree(gb_per_s: float, hop_us: float) -> Truth:
    """The faster of a ring, whose latency grows with the hops, and a tree at 70% of the rate, as
    NCCL chooses.
    """

    def time_us(devices: int, size: int) -> float:
        nodes = devices // PER_NODE
        if nodes <= 1:
            return 12.0 + _ring_factor(devices) * size / 200e3
        moved = _ring_factor(devices) * size / (gb_per_s * 1e3)
        return 20.0 + min(
            2 * (nodes - 1) * hop_us + moved, 2 * math.log2(nodes) * 2 * hop_us + moved / 0.7
        )

    return time_us


SHAPES: dict[str, Truth] = {
    "fat tree": _network(25.0, 9.0, 22.0),
    "eight rails": _network(30.0, 6.0, 160.0),
    "Ethernet": _network(60.0, 30.0, 2.6),
    "oversubscribed": _network(25.0, 9.0, 22.0, lambda nodes: 1.0 if nodes <= 16 else 2.0),
    "dragonfly": _network(
        28.0, 14.0, 40.0, lambda nodes: min(2.5, 1.0 + 0.25 * max(0.0, math.log2(nodes / 4)))
    ),
    "ring or tree": _ring_or_tree(22.0, 4.0),
    "congested": _network(30.0, 12.0, 44.0, lambda nodes: nodes**0.12),
}


@dataclass(frozen=True)
class Cluster:
    """A shape with what disturbs it. `cliffs`: (devices, bytes) -> factor of the time."""

    truth: Truth
    noise: float = 0.08  # standard deviation of logarithms, of every time
    count_noise: float = 0.08  # of every count, shared by its sizes
    outliers: float = 0.03  # share of times that are 2 to 5 times too long
    cliffs: dict[tuple[int, int], float] = field(default_factory=dict)
    seed: int = 0

    def times_us(
        self, counts: Sequence[int] = COUNTS, sizes: Sequence[int] = SIZES
    ) -> dict[int, dict[int, float]]:
        """One job's times; the same for any `counts`."""
        generator = np.random.default_rng(self.seed)
        every: dict[int, dict[int, float]] = {}
        for devices in COUNTS:
            shared = generator.normal(0.0, self.count_noise)
            for size in SIZES:
                own = generator.normal(0.0, self.noise)
                bad = generator.uniform(2.0, 5.0) if generator.random() < self.outliers else 1.0
                factor = bad * self.cliffs.get((devices, size), 1.0) * math.exp(shared + own)
                every.setdefault(devices, {})[size] = self.truth(devices, size) * factor
        return {devices: {size: every[devices][size] for size in sizes} for devices in counts}


def log_text(times_us: dict[int, float], devices: int, prefix: str = "") -> str:
    """What `all_reduce_perf` prints for one count."""
    ranks = "".join(
        f"#  Rank {rank:2d} Group  0 Pid {1000 + rank} on node{rank // PER_NODE:04d} device {rank % PER_NODE:2d} [0x07] NVIDIA "
        "A100-SXM4-40GB\n"
        for rank in range(devices)
    )
    rows = ""
    for size, time in times_us.items():
        algbw = size / time / 1e3
        values = f"{time:9.2f} {algbw:7.2f} {algbw * _ring_factor(devices):7.2f}      0"
        rows += f"{size:12d} {size // 4:13d}     float     sum      -1 {values} {values}\n"
    text = f"# nThread 1 nGpus 1 minBytes 65536\n# Using devices\n{ranks}{_HEADING}{rows}# Avg bus bandwidth : 1\n"
    return "".join(f"{prefix}{line}\n" for line in text.splitlines())
