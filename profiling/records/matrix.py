"""Which cells a run has, as settings: strategies, devices, batches and variants. Imports no
torch.
"""

import contextlib
import itertools
import re
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Literal, NamedTuple

import msgspec

from dpscope.profiling.records.finding import counted
from dpscope.profiling.records.settings import (
    COMPARED,
    Check,
    ConfigPart,
    SettingError,
    at_least,
    declarations,
    holds,
    setting,
)
from dpscope.profiling.records.strategies import (
    STRATEGY_LIST,
    Strategy,
    any_reducer,
    ddp_arguments,
    spans_nodes,
    traits_of,
)
from dpscope.profiling.records.typed_text import MIB, parse_size, whole_numbers, words

CommHook = Literal["none", "fp16", "bf16", "powersgd"]
NcclEngine = Literal["default", "legacy", "nccl2"]
Amp = Literal["off", "bf16", "fp16"]
Switch = Literal["on", "off"]
CompileMode = Literal[
    "off", "default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs", "aot_eager"
]
"""What torch.compile makes of a model: inductor's modes by torch's names; aot_eager captures graphs
and generates no code.
"""
BY_CUDA_GRAPHS: dict[CompileMode, CompileMode] = {
    "reduce-overhead": "default",
    "max-autotune-no-cudagraphs": "max-autotune",
}
"""Modes that differ from another one by CUDA graphs alone, and that one."""
SHARDED_HOOKS: tuple[CommHook, ...] = ("none", "fp16", "bf16")
"""How FSDP can send gradients: the type in which it reduces them."""

_LARGEST_BUCKET_MB = 1 << 20  # a TiB

_PRODUCT = re.compile(r"\s*(\d+)\s*x\s*(\d+)\s*")


class Layout(NamedTuple):
    """So many hosts, and on each so many devices."""

    nodes: int
    per_node: int

    def __str__(self) -> str:
        return f"{self.nodes}x{self.per_node}"

    @property
    def devices(self) -> int:
        """Over all hosts."""
        return self.nodes * self.per_node


def parse_layout(text: str) -> Layout:
    """The layout that a text such as ``2x8`` names; raises ValueError for another text, less than
    two nodes and no device.
    """
    parts = _PRODUCT.fullmatch(text)
    if parts is None:
        raise ValueError(
            f"{text.strip() or 'nothing'} is neither a number of devices nor a layout such as 2x4"
        )
    layout = Layout(int(parts[1]), int(parts[2]))
    if layout.per_node < 1:
        raise ValueError(
            f"{layout} has no device on a node; the second number is 1 or more, such as {max(layout.nodes, 2)}x1"
        )
    if layout.nodes < 2:
        raise ValueError(
            f"{layout} does not span several nodes; for one node write {layout.per_node}"
        )
    return layout


def parse_devices(text: str) -> tuple[int, ...]:
    """Device counts from ``1,2,4``; raises ValueError."""
    return tuple(sorted(set(whole_numbers(text))))


def parse_counts_and_layouts(text: str) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Device counts on one node and layouts over several from ``1,2,4,2x4``; raises ValueError."""
    parts = text.split(",")
    layouts = tuple(str(parse_layout(part)) for part in parts if "x" in part)
    on_one_node = [part for part in parts if "x" not in part]
    return parse_devices(",".join(on_one_node)) if on_one_node else (), layouts


def parse_batch_sizes(text: str) -> tuple[tuple[int, ...], int | None]:
    """Batch sizes and growth factor from ``32,128`` (no growth) or ``32,128,...`` (32, 128, 512,
    ...); raises ValueError.
    """
    listed = text.removesuffix(",...")
    sizes = tuple(sorted(set(whole_numbers(listed))))
    if listed == text:
        return sizes, None

    try:
        first, second = sizes
        growth, rest = divmod(second, first)
    except (ValueError, ZeroDivisionError):
        rest = 1
    if rest:
        raise ValueError("before ,... stand two sizes, the second a multiple of the first")
    return (first,), growth


def _mebibytes(text: str) -> float:
    """A bare number is MiB; a size with a unit is converted, to four decimals, since cells are
    named after it.
    """
    with contextlib.suppress(ValueError):
        return float(text)  # its range is checked with the other settings
    try:
        return round(parse_size(text, MIB) / MIB, 4)
    except ValueError as error:
        raise ValueError(
            f"{text or 'nothing'} is not a number of MiB, nor a size such as 25MB"
        ) from error


def _bucket_fix(sizes: Sequence[float | str]) -> str:
    if all(0 < size <= _LARGEST_BUCKET_MB for size in sizes if not isinstance(size, str)):
        return ""
    return f"must be above 0 MiB and at most {_LARGEST_BUCKET_MB}; --overlap off makes one bucket of everything"


def _readable(read: Callable[[str], object], advice: str = "") -> Check:
    """A check of texts by what reads each, whose ValueError is the fix."""

    def fix(texts: Sequence[str]) -> str:
        try:
            for text in texts:
                read(text)
        except ValueError as error:
            return f"{error}{advice}"
        return ""

    return fix


def _other_arguments(text: str) -> None:
    """Raise ValueError for a text that names no arguments of DDP, or one that is a variant
    itself.
    """
    for name, argument in DDP_ARGUMENTS.items():
        if argument in ddp_arguments(text):
            raise ValueError(f"{argument} has its own option; use --{name.replace('_', '-')}")


_layouts_fix = _readable(parse_layout, "; write it as 2x8")


class Variants(ConfigPart, frozen=True):
    """Variants of the strategies (docs/variants.md): each combination of their values is a cell,
    the last ones vary fastest.

    All but `accumulate`, `compile` and `amp_variants` concern DistributedDataParallel alone, and
    `comm_hook` FSDP too. Values are kept without repetition, in the order of the documentation,
    numbers ascending.

    To add an option of DDP: a field here, one of `CellOptions` (run.py) with its word in the cell's
    name, and a row in docs/variants.md. It is used in launch/workload/strategies.py; `argument` names
    DDP's argument, which --ddp-args then refuses. One that changes what DDP moves, or how it cuts its
    buckets, needs its check in analysis/runs/traffic_check.py.
    """

    heading: ClassVar[str] = COMPARED

    overlap: tuple[Switch, ...] = setting(
        ("on",), "on, off (one bucket, after backward), or on,off"
    )
    accumulate: tuple[int, ...] = setting(
        (1,),
        "micro-batches a step, or several: 1,4",
        example="1,4",
        check=lambda counts: (
            "" if min(counts, default=1) >= 1 else "must be 1 or more micro-batches"
        ),
    )
    # precisions other than the workload's: off,bf16 is its amp off and this (bf16,)
    amp_variants: tuple[Amp, ...] = ()
    broadcast_buffers: tuple[Switch, ...] = setting(
        ("on",), "on, off, or on,off", argument="broadcast_buffers"
    )
    comm_hook: tuple[CommHook, ...] = setting(
        ("none",),
        "gradients travel as none, fp16 or bf16 (DDP, FSDP), powersgd (DDP), or several",
        example="none,fp16",
    )
    ddp_args: tuple[str, ...] = setting(
        ("default",),
        "more arguments of DDP, such as batched_grad_copy=true; several variants: default;NAME=VALUE",
        text=lambda text: tuple(" ".join(part.split()) for part in text.split(";")),
        example="default;batched_grad_copy=true",
        check=_readable(_other_arguments),
    )  # NAME=VALUE NAME=VALUE, values as in JSON
    nccl_engine: tuple[NcclEngine, ...] = setting(
        ("default",),
        "torch's engine for NCCL: default, legacy or nccl2 (torch 2.14 or newer), or several",
        example="default,legacy",
    )
    compile: tuple[CompileMode, ...] = setting(
        ("off",),
        "torch.compile: off, a mode such as default, aot_eager, or several",
        example="off,default",
    )  # each strategy but DataParallel
    bucket_mb: tuple[float | Literal["default"], ...] = setting(
        ("default",),
        "DDP's bucket cap in MiB, or with a unit (25MB), or default, or several",
        text=lambda text: tuple(
            part if part == "default" else _mebibytes(part) for part in words(text)
        ),
        joins=lambda sizes: any(isinstance(size, str) for size in sizes),
        example="default,5",
        check=_bucket_fix,
        argument="bucket_cap_mb",
    )  # default: 1 MiB, then 25 MiB

    def __post_init__(self) -> None:
        for name in VARIANTS:
            if not (values := getattr(self, name)):
                example = declarations(Variants)[name].example
                raise SettingError(f"no value; write it as {example}", **{name: values})
        super().__post_init__()


VARIANTS = tuple(name for name in Variants.__struct_fields__ if name != "amp_variants")
"""Those that hold every value, the default too where it is wanted; each has one at least."""
DDP_ARGUMENTS = {
    name: declared.argument
    for name, declared in declarations(Variants).items()
    if declared.argument
}
"""The argument of DistributedDataParallel that a variant is."""
DDP_VARIANTS = tuple(name for name in VARIANTS if name not in ("accumulate", "compile"))


def _one_device(matrix: "Matrix") -> bool:
    return matrix.devices == (1,) and not matrix.layouts


def several_devices_idle(config: Any) -> str:
    """Why what concerns several devices has no effect: no cell has them."""
    matrix: Matrix = config.matrix
    if _one_device(matrix) or all(traits_of(strategy).baseline for strategy in matrix.strategies):
        return "nothing is measured on several devices, so there is no link and no scaling"
    return ""


def collectives_idle(config: Any) -> str:
    """Why no collective of a process group takes place: each cell has one process."""
    matrix: Matrix = config.matrix
    if _one_device(matrix) or not spans_nodes(matrix.strategies):
        return "each cell has one process, which calls no collective"
    return ""


def _ddp_alone_idle(config: Any) -> str:
    matrix: Matrix = config.matrix
    if not any_reducer(matrix.strategies):
        return f"ddp is not in --strategy {','.join(matrix.strategies)}"
    if matrix.devices is not None and (1 not in matrix.devices or _one_device(matrix)):
        return "DDP on one device is measured only in addition to several devices, and --devices does not name both"
    return ""


class Matrix(Variants, frozen=True):
    """Which cells are measured.

    `batch_sizes` are per device under weak scaling and global under strong scaling; with `both`,
    the same numbers are read both ways and the union of the cells is measured once. Lists are kept
    without repetition: numbers ascending, strategies in the order of the report.
    """

    strategies: tuple[Strategy, ...] = setting(
        ("single", "dp", "ddp"),
        f"{STRATEGY_LIST}, or several: single,ddp",
        option="strategy",
        check=holds(bool, f"no strategy; choose from {STRATEGY_LIST}"),
    )
    devices: tuple[int, ...] | None = setting(
        None,
        "device counts, such as 1,2,4; 2x4 is 2 nodes with 4 each",
        help_of={"equal": "devices of dp and ddp"},
        text=parse_counts_and_layouts,
        sets=("layouts",),
        joins=lambda counts: any("x" in str(count) for count in counts),
    )  # counts on one node, 1 for the single-device baseline
    # 2x8: over two nodes
    layouts: tuple[str, ...] = setting((), option="devices", check=_layouts_fix)
    batch_sizes: tuple[int, ...] | None = setting(
        None,
        "per device (weak) or global (strong): 32,128, or 32,128,... to go on to 512, 2048 as far as memory allows",
        help_of={
            "train": "of a step over all devices (strong) or per device (weak): 32",
            "equal": "global, over all devices",
        },
        option="batch_size",
        text=parse_batch_sizes,
        sets=("batch_growth",),
        example="32,128 or 32,128,...",
        check=holds(
            lambda sizes: len(sizes) > 0 and min(sizes) >= 1, "every batch size must be 1 or more"
        ),
    )
    # 32,128,...: 4
    batch_growth: int | None = setting(None, check=at_least(2, "growth must be 2 or more"))
    scaling: Literal["weak", "strong", "both"] = setting(
        "weak",
        "weak, strong or both",
        help_of={"train": "strong: same global batch everywhere; weak: it grows"},
        idle=lambda config: (
            "on one device weak and strong are the same" if _one_device(config.matrix) else ""
        ),
    )
    ddp_alone: bool | None = setting(None, "also measure DDP on one device", idle=_ddp_alone_idle)

    def __post_init__(self) -> None:
        self._put_in_order()
        if min(self.devices or (1,)) < 1 or (self.devices == () and not self.layouts):
            raise SettingError("every device count must be 1 or more", devices=self.devices)
        super().__post_init__()
        if self.batch_growth is not None and len(self.batch_sizes or ()) != 1:
            fix = "growth needs one batch size to start from, as in --batch-size 32,128,..."
            raise SettingError(fix, batch_growth=self.batch_growth)
        if self.overlap == ("off",) and self.bucket_mb != ("default",):
            fix = "without overlap one bucket holds all gradients; omit one of them, or compare with --overlap on,off"
            raise SettingError(fix, bucket_mb=self.bucket_mb, overlap=self.overlap)
        if not any_reducer(self.strategies):
            self._check_variants_of_ddp()

    def _put_in_order(self) -> None:
        """Lists without repetition: words in the order of their type, numbers ascending behind
        `default`.
        """
        for name, declared in declarations(type(self)).items():
            values: Any = getattr(self, name)
            if not isinstance(values, tuple) or (name == "layouts" and _layouts_fix(values)):
                continue
            if declared.choices:
                values = [word for word in declared.choices if word in values]
            elif name == "layouts":
                values = map(str, sorted(set(map(parse_layout, values))))
            else:
                values = sorted(set(values), key=lambda value: (value != "default", value))
            msgspec.structs.force_setattr(self, name, tuple(values))

    def _check_variants_of_ddp(self) -> None:
        """Raise SettingError for a variant that only DDP has, or of gradients that FSDP does not
        have.
        """
        named = ",".join(self.strategies)
        sharded = any(traits_of(strategy).sharded for strategy in self.strategies)
        for name in DDP_VARIANTS:
            if (value := getattr(self, name)) == getattr(Variants(), name):
                continue
            if name != "comm_hook" or not sharded:
                only = "only DDP and FSDP have" if name == "comm_hook" else "only DDP has"
                fix = f"{only} it, and ddp is not in --strategy {named}; add ddp, or omit it"
                raise SettingError(fix, **{name: value})
            if unknown := set(self.comm_hook) - set(SHARDED_HOOKS):
                raise SettingError(
                    f"FSDP has no {unknown.pop()}, only fp16 and bf16, the types in which it reduces; "
                    f"add ddp to --strategy {named}, or omit it",
                    comm_hook=value,
                )


class ResolvedMatrix(Matrix, frozen=True, kw_only=True):
    """A matrix with nothing left to choose for this machine."""

    devices: tuple[int, ...]
    batch_sizes: tuple[int, ...]
    ddp_alone: bool = True
    # in folders of earlier versions; --ddp-args has them now
    static_graph: tuple[Switch, ...] = ("off",)
    gradient_as_bucket_view: tuple[Switch, ...] = ("off",)

    @property
    def counts(self) -> tuple[int, ...]:
        """How many devices cells have, over all their nodes."""
        return tuple(sorted({*self.devices, *(layout.devices for layout in layouts_of(self))}))

    @property
    def most_on_a_node(self) -> int:
        """The most devices that a cell has on one node."""
        return max((*self.devices, *(layout.per_node for layout in layouts_of(self))))


def layouts_of(matrix: Matrix) -> tuple[Layout, ...]:
    """The layouts over several nodes, the fewest nodes first."""
    return tuple(map(parse_layout, matrix.layouts))


def check_micro_batches(matrix: Matrix) -> None:
    """Raise SettingError where micro-batches of a cell would not be equal.

    Not every matrix has to hold it: that of cells measured by hand is their union, of which each
    alone was checked.
    """
    counts = {1}
    if matrix.scaling != "weak":
        counts |= {*(matrix.devices or ()), *(layout.devices for layout in layouts_of(matrix))}
    sizes = matrix.batch_sizes or ()
    shares = [sorted({size // count for count in counts if size % count == 0}) for size in sizes]
    for share, count in itertools.product(itertools.chain(*shares), matrix.accumulate):
        if share % count:
            raise SettingError(
                f"{counted(share, 'sample')} per device cannot be cut into {count} equal micro-batches; choose "
                f"batch sizes that {count} divides (--batch-size is a whole step's, per device)",
                accumulate=matrix.accumulate,
            )
