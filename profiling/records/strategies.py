"""The strategies of data-parallel training: one record per strategy for all other code; arguments
of DDP. Imports no torch. A new one stands in `Strategy`, in `CellStrategy` and in STRATEGIES.

All other code asks the record (`StrategyTraits`): which devices a strategy can use, what its traces
must hold, which formula applies, how it is labelled. A strategy built on DDP is a `reducer` with
`plainer="ddp"`: it takes DDP's options and is compared with DDP. Where no trait describes what is
different, add one; a test refuses a comparison with a strategy's name elsewhere. Traffic that is
neither DDP's nor FSDP's needs a check in analysis/runs/traffic_check.py.
"""

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import Literal, get_args

Strategy = Literal["single", "dp", "ddp", "replicate", "fsdp", "fsdp-no-reshard", "hsdp"]
"""What users request."""
CellStrategy = Literal[
    "single", "dp", "dp-host", "ddp", "replicate", "fsdp", "fsdp-no-reshard", "hsdp", "custom"
]
"""Strategies of cells: in addition the stand-in `dp-host`, and `custom` for several processes
without a known wrapper.
"""
STRATEGY_LIST = ", ".join(get_args(Strategy))
Transport = Literal["nothing", "peer copies", "host copies", "collectives", "unknown"]
SHARDED_COLLECTIVES = ("all_gather", "reduce_scatter")


@dataclass(frozen=True)
class StrategyTraits:
    """The properties of a strategy."""

    label: str  # in figures and series
    colour: str  # of its lines in figures
    transport: Transport  # how parameters and gradients travel between devices
    meaning: str = ""  # a sentence for the glossary, which lists what users request
    collectives: tuple[str, ...] = ()  # kinds that a step on several GPUs runs
    baseline: bool = False  # one device, with which the others are compared
    # drives all its devices from one process; else one process for each device
    one_process: bool = False
    # torch's DistributedDataParallel: buckets, options, counters; also measured on one device
    reducer: bool = False
    # fully_shard: a device holds a part of parameters, gradients and optimizer state
    sharded: bool = False
    # if sharded: parameters are freed after forward and gathered again for backward
    reshards: bool = True
    hybrid: bool = False  # if sharded: within groups of devices, and replicated between the groups
    least_devices: int = 1  # on which it does something
    on_cpu: CellStrategy | None = None  # its stand-in without GPUs
    stands_for: Strategy | None = None
    plainer: Strategy | None = None  # the strategy against which its cost is measured
    no_rings: str = ""  # why no ring formula describes its traffic
    identified: bool = True  # False if traces show none of the strategies
    traffic: float = 1.0  # time of a step's communication on a CPU relative to DDP's all-reduces

    @property
    def threaded(self) -> bool:
        """Whether one process drives several devices, with a thread for each."""
        return self.one_process and not self.baseline

    @property
    def peer_copies(self) -> bool:
        """Whether it is torch's nn.DataParallel, whose devices copy from and to the first one."""
        return self.transport == "peer copies"

    @property
    def host_copies(self) -> bool:
        """Whether its replicas share the host's memory, so that communication is copying within
        it.
        """
        return self.transport == "host copies"

    @property
    def plain_reducer(self) -> bool:
        """Whether it is DDP itself, with which DataParallel is compared, and no strategy that is
        built on DDP.
        """
        return self.reducer and traits_of(self.plainer or "").baseline

    @property
    def all_reduces(self) -> bool:
        """Whether it only communicates gradients, by all-reduces."""
        return self.collectives == ("all_reduce",)

    @property
    def reduces_early(self) -> bool:
        """Whether gradients are reduced while the backward pass still computes others."""
        return bool(self.collectives) and not self.one_process

    @property
    def communication(self) -> str:
        """The term for its communication in sentences."""
        return "host copies" if self.host_copies else "communication"


_RINGS: Transport = "collectives"
_FSDP = partial(
    StrategyTraits, transport=_RINGS, collectives=SHARDED_COLLECTIVES, sharded=True, plainer="ddp"
)
STRATEGIES: dict[str, StrategyTraits] = {  # in the order of plans and tables
    "single": StrategyTraits(
        "single", "#777777", "nothing", "single is one device.", baseline=True, one_process=True
    ),
    "dp": StrategyTraits(
        "DP",
        "#D55E00",
        "peer copies",
        "DP is nn.DataParallel: one process drives all devices.",
        collectives=("broadcast", "reduce"),
        one_process=True,
        least_devices=2,
        on_cpu="dp-host",
        no_rings="DataParallel runs no all-reduce",
    ),
    "dp-host": StrategyTraits(
        "dp-host",
        "#D55E00",
        "host copies",
        one_process=True,
        least_devices=2,
        stands_for="dp",
        no_rings="dp-host runs no all-reduce",
    ),
    "ddp": StrategyTraits(
        "DDP",
        "#0072B2",
        _RINGS,
        "DDP runs one process per device and all-reduces gradients.",
        collectives=("all_reduce",),
        reducer=True,
        plainer="single",
    ),
    "replicate": StrategyTraits(
        "replicate",
        "#B5366F",
        _RINGS,
        "replicate does the same as DDP without a wrapper module.",
        collectives=("all_reduce",),
        least_devices=2,
        plainer="ddp",
    ),
    "fsdp": _FSDP(
        "FSDP",
        "#E69F00",
        meaning="FSDP (fully_shard) shards parameters, gradients and optimizer state over the devices: it all-gathers parameters "
        "before use and reduce-scatters gradients.",
        least_devices=2,
        traffic=1.5,
    ),
    "fsdp-no-reshard": _FSDP(
        "FSDP without resharding",
        "#A6761D",
        meaning="fsdp-no-reshard keeps parameters gathered between forward and backward.",
        reshards=False,
        least_devices=2,
        traffic=1.25,
    ),
    "hsdp": _FSDP(
        "HSDP",
        "#117733",
        meaning="hsdp shards within groups of devices and all-reduces between the groups.",
        collectives=(*SHARDED_COLLECTIVES, "all_reduce"),
        hybrid=True,
        # below, a group to shard over or one to replicate over would have one rank
        least_devices=4,
        traffic=2.0,
    ),
    "custom": StrategyTraits("custom", "#8C6BD1", "unknown"),
}
OTHER = StrategyTraits("other", "#8C6BD1", "unknown", identified=False)
"""A job whose traces show none of the strategies."""


def traits_of(strategy: str) -> StrategyTraits:
    """The record of a strategy; OTHER for an unknown name."""
    return STRATEGIES.get(strategy, OTHER)


def spans_nodes(strategies: Iterable[str]) -> bool:
    """Whether at least one of the strategies can run on several nodes, with a process for each
    device.
    """
    return any(not traits_of(strategy).one_process for strategy in strategies)


def any_reducer(strategies: Iterable[str]) -> bool:
    """Whether at least one of the strategies is torch's DistributedDataParallel."""
    return any(traits_of(strategy).reducer for strategy in strategies)


def strategy_order(strategy: str) -> int:
    """The position of a strategy in plans and tables; a stand-in has that of its original."""
    return [*STRATEGIES, strategy].index(traits_of(strategy).stands_for or strategy)


def strategy_on(strategy: Strategy, kind: str) -> CellStrategy:
    """The strategy, or its stand-in on a CPU.

    >>> strategy_on("dp", "cpu"), strategy_on("dp", "cuda"), strategy_on("ddp", "cpu")
    ('dp-host', 'dp', 'ddp')
    """
    return (traits_of(strategy).on_cpu if kind == "cpu" else None) or strategy


def shard_groups(strategy: str, devices: int, nodes: int = 1) -> tuple[int, int]:
    """Number of groups that hold a whole model, and number of devices over which each shards it.

    HSDP shards within a node and replicates over nodes; on one node it shards within each half of
    the devices.

    >>> shard_groups("fsdp", 8), shard_groups("hsdp", 8), shard_groups("hsdp", 16, nodes=4), shard_groups("ddp", 2)
    ((1, 8), (2, 4), (4, 4), (2, 1))
    """
    traits = traits_of(strategy)
    if not traits.sharded:
        return devices, 1
    groups = (nodes if nodes > 1 else 2) if traits.hybrid else 1
    return groups, devices // groups


def concurrent_collectives(strategy: str, devices: int, nodes: int = 1) -> frozenset[str]:
    """Kinds of collectives that a cell runs in several groups at the same time, which share links.

    HSDP's groups on one node gather and scatter at once, and every shard is reduced between the
    groups at once.

    >>> sorted(concurrent_collectives("hsdp", 8)), sorted(concurrent_collectives("hsdp", 16, nodes=4))
    (['all_gather', 'all_reduce', 'reduce_scatter'], ['all_reduce'])
    >>> sorted(concurrent_collectives("hsdp", 2)), sorted(concurrent_collectives("fsdp", 8))
    ([], [])
    """
    groups, shards = shard_groups(strategy, devices, nodes)
    if not traits_of(strategy).sharded or groups == 1 or shards == 1:
        return frozenset()
    return frozenset(("all_reduce", *(SHARDED_COLLECTIVES if groups > nodes else ())))


POWERSGD_RANK = 1
# a matrix that would not shrink by more than this factor is sent as it is
POWERSGD_LEAST_COMPRESSION = 2
"""torch's own defaults of `PowerSGDState`."""


def ddp_arguments(text: str) -> dict[str, object]:
    """DDP's further arguments from ``default`` (none) or ``NAME=VALUE NAME=VALUE``.

    Values are JSON; what is no JSON is text. Raises ValueError.
    """
    arguments: dict[str, object] = {}
    for part in () if text == "default" else text.split():
        name, given, value = part.partition("=")
        if not (name.isidentifier() and given and value):
            raise ValueError(
                f"{part} is not NAME=VALUE; values have no spaces, as in bucket_cap_mb_list=[1,25]"
            )
        if name in ("module", "device_ids", "output_device", "process_group", "device_mesh"):
            raise ValueError(f"{name} is set by dpscope; omit it")
        try:
            arguments[name] = json.loads(value)
        except ValueError:
            arguments[name] = value
        except RecursionError as error:
            raise ValueError(f"{name} is nested too deeply") from error
    if arguments.get("mixed_precision", "bf16") not in ("bf16", "fp16"):
        raise ValueError("mixed_precision is bf16 or fp16")
    return arguments


def powersgd_elements(shapes: tuple[tuple[int, ...], ...]) -> int:
    """Elements that PowerSGD all-reduces in a step for gradients of these shapes.

    A gradient, seen as n rows of m, is sent as an n x r and an m x r matrix where that is less than
    half of it, else whole. Source: Vogels et al., "PowerSGD", NeurIPS 2019, algorithm 1; torch's
    `powerSGD_hook`.
    """
    total = 0
    for shape in shapes:
        rows = shape[0] if shape else 1
        columns = math.prod(shape[1:])
        sent = (rows + columns) * min(rows, columns, POWERSGD_RANK)
        total += sent if sent * POWERSGD_LEAST_COMPRESSION < rows * columns else rows * columns
    return total
