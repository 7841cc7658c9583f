"""Which cells a run has, as settings: strategies, devices, batches and variants. Imports no torch."""

import re
from typing import Literal, NamedTuple, get_args

import msgspec

from dpscope.profiling.records.ddp_arguments import ddp_arguments
from dpscope.profiling.records.finding import counted
from dpscope.profiling.records.settings import ConfigPart, SettingCheck, SettingError
from dpscope.profiling.records.strategies import STRATEGY_LIST, Strategy, any_reducer, traits_of

CommHook = Literal["none", "fp16", "bf16", "powersgd"]
NcclEngine = Literal["default", "legacy", "nccl2"]
Amp = Literal["off", "bf16", "fp16"]
Switch = Literal["on", "off"]
CompileMode = Literal["off", "default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs", "aot_eager"]
"""What torch.compile makes of a model: inductor's modes by torch's names; aot_eager captures graphs and generates no code."""
BY_CUDA_GRAPHS: dict[CompileMode, CompileMode] = {
    "reduce-overhead": "default",
    "max-autotune-no-cudagraphs": "max-autotune",
}
"""Modes that differ from another one by CUDA graphs alone, and that one."""
SHARDED_HOOKS: tuple[CommHook, ...] = ("none", "fp16", "bf16")
"""What FSDP can be told of how gradients travel: the type in which it reduces them."""

_LARGEST_BUCKET_MB = 1 << 20  # a TiB

_LAYOUT = re.compile(r"\s*(\d+)\s*x\s*(\d+)\s*")


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
    """The layout that a text such as ``2x8`` names; raises ValueError for another text, less than two nodes and no device."""
    found = _LAYOUT.fullmatch(text)
    if found is None:
        raise ValueError(f"{text.strip() or 'nothing'} is not a number of nodes times devices")
    layout = Layout(int(found[1]), int(found[2]))
    if layout.per_node < 1:
        raise ValueError(
            f"{layout} has no device on a node; the second number is 1 or more, such as {max(layout.nodes, 2)}x1"
        )
    if layout.nodes < 2:
        raise ValueError(f"{layout} does not span several nodes; for one node write {layout.per_node}")
    return layout


class Variants(ConfigPart, frozen=True):
    """Variants of the strategies (docs/variants.md): each combination of their values is a cell.

    All but `accumulate`, `compile` and `amp_variants` concern DistributedDataParallel alone, and `comm_hook` FSDP too. Values
    are kept without repetition, in the order of the documentation, numbers ascending.
    """

    comm_hook: tuple[CommHook, ...] = ("none",)  # how gradients travel
    bucket_mb: tuple[float | Literal["default"], ...] = ("default",)  # MiB; default: 1 MiB, then 25 MiB
    ddp_args: tuple[str, ...] = ("default",)  # further arguments of DDP: NAME=VALUE NAME=VALUE, values as in JSON
    nccl_engine: tuple[NcclEngine, ...] = ("default",)  # which of torch's (>= 2.15) engines runs NCCL
    overlap: tuple[Switch, ...] = ("on",)  # off: one bucket holds all gradients, reduced when backward is over
    gradient_as_bucket_view: tuple[Switch, ...] = ("off",)
    static_graph: tuple[Switch, ...] = ("off",)
    broadcast_buffers: tuple[Switch, ...] = ("on",)
    accumulate: tuple[int, ...] = (1,)  # micro-batches that a step's batch is cut into
    compile: tuple[CompileMode, ...] = ("off",)  # by torch.compile, each strategy but DataParallel
    amp_variants: tuple[Amp, ...] = ()  # precisions beside the workload's: off,bf16 is its amp off and this (bf16,)


VARIANTS = tuple(name for name in Variants.__struct_fields__ if name != "amp_variants")
"""Those that hold every value, the default too where it is wanted; each has one at least."""
SWITCHES = tuple(field.name for field in msgspec.structs.fields(Variants) if field.type == tuple[Switch, ...])
DDP_VARIANTS = tuple(name for name in VARIANTS if name not in ("accumulate", "compile"))
VARIANT_EXAMPLES = {
    "comm_hook": "none,fp16",
    "bucket_mb": "default,5",
    "ddp_args": "default;batched_grad_copy=true",
    "accumulate": "1,4",
    "compile": "off,default",
    "nccl_engine": "default,legacy",
    **dict.fromkeys(SWITCHES, "on or off, or on,off to compare them"),
}


class Matrix(Variants, frozen=True):
    """Which cells are measured.

    `batch_sizes` are per device under weak scaling and global under strong scaling; with `both`, the same numbers are read
    both ways and the union of the cells is measured once. Lists are kept without repetition: numbers ascending, strategies
    in the order of the report.
    """

    strategies: tuple[Strategy, ...] = ("single", "dp", "ddp")
    devices: tuple[int, ...] | None = None  # device counts on one node, 1 for the single-device baseline
    layouts: tuple[str, ...] = ()  # over several nodes, DDP's alone: 2x8 is two nodes with eight devices each
    batch_sizes: tuple[int, ...] | None = None
    batch_growth: int | None = None  # 32x4: batch_sizes == (32,), batch_growth == 4
    scaling: Literal["weak", "strong", "both"] = "weak"
    ddp_alone: bool | None = None  # also measure DDP on one device, where it costs something but communicates nothing

    def __post_init__(self) -> None:
        for name, value in self._in_order().items():
            msgspec.structs.force_setattr(self, name, value)
        super().__post_init__()
        if self.batch_growth is not None and len(self.batch_sizes or ()) != 1:
            fix = "growth needs one batch size to start from, as in --batch-size 32x4"
            raise SettingError(fix, batch_growth=self.batch_growth)
        self._check_variants()

    def _in_order(self) -> dict[str, object]:
        orders = {"strategies": get_args(Strategy), "comm_hook": get_args(CommHook), "amp_variants": get_args(Amp)}
        orders |= {"nccl_engine": get_args(NcclEngine), "compile": get_args(CompileMode)}
        orders |= dict.fromkeys(SWITCHES, get_args(Switch))
        ordered: dict[str, object] = {
            name: tuple(value for value in order if value in getattr(self, name)) for name, order in orders.items()
        }
        sizes = set(self.bucket_mb)
        named: list[object] = ["default"] if "default" in sizes else []
        ordered["bucket_mb"] = (*named, *sorted(size for size in sizes if not isinstance(size, str)))
        ordered["ddp_args"] = tuple(sorted(set(self.ddp_args), key=lambda one: (one != "default", one)))
        for name in ("devices", "batch_sizes", "accumulate"):
            numbers = getattr(self, name)
            ordered[name] = None if numbers is None else tuple(sorted(set(numbers)))
        if not _wrong_layouts(self.layouts):
            ordered["layouts"] = tuple(map(str, sorted(set(map(parse_layout, self.layouts)))))
        return ordered

    def checks(self) -> list[SettingCheck]:
        sizes = [size for size in self.bucket_mb if not isinstance(size, str)]
        return [
            ("strategies", bool(self.strategies), f"no strategy; choose from {STRATEGY_LIST}"),
            ("layouts", not _wrong_layouts(self.layouts), f"{_wrong_layouts(self.layouts)}; write it as 2x8"),
            (
                "devices",
                _all_positive(self.devices) or (self.devices == () and bool(self.layouts)),
                "every device count must be 1 or more",
            ),
            ("batch_sizes", _all_positive(self.batch_sizes), "every batch size must be 1 or more"),
            ("batch_growth", self.batch_growth is None or self.batch_growth >= 2, "growth must be 2 or more"),
            *(
                (name, bool(getattr(self, name)), f"no value; write it as {VARIANT_EXAMPLES[name]}")
                for name in VARIANTS
            ),
            (
                "bucket_mb",
                all(0 < size <= _LARGEST_BUCKET_MB for size in sizes),
                f"must be above 0 MiB and at most {_LARGEST_BUCKET_MB}; --overlap off makes one bucket of everything",
            ),
            ("accumulate", min(self.accumulate, default=1) >= 1, "must be 1 or more micro-batches"),
            *(("ddp_args", not wrong, wrong) for wrong in map(_wrong_arguments, self.ddp_args)),
        ]

    def _check_variants(self) -> None:
        """Raise SettingError for variants that contradict each other or the strategies."""
        if self.overlap == ("off",) and self.bucket_mb != ("default",):
            raise SettingError(
                "without overlap one bucket holds all gradients; omit one of them, or compare with --overlap on,off",
                bucket_mb=self.bucket_mb,
                overlap=self.overlap,
            )
        if any_reducer(self.strategies):
            return
        named = ",".join(self.strategies)
        for name in DDP_VARIANTS:
            if getattr(self, name) == getattr(_NO_VARIANTS, name):
                continue
            if name != "comm_hook" or not any(traits_of(one).sharded for one in self.strategies):
                only = "only DDP and FSDP have" if name == "comm_hook" else "only DDP has"
                raise SettingError(
                    f"{only} it, and ddp is not in --strategy {named}; add ddp, or omit it",
                    **{name: getattr(self, name)},
                )
            if unknown := set(self.comm_hook) - set(SHARDED_HOOKS):
                raise SettingError(
                    f"FSDP reduces in a type, none, fp16 or bf16, and {unknown.pop()} is none; add ddp to --strategy {named}, "
                    "or omit it",
                    comm_hook=self.comm_hook,
                )


class ResolvedMatrix(Matrix, frozen=True, kw_only=True):
    """A matrix with nothing left to choose for this machine."""

    devices: tuple[int, ...]
    batch_sizes: tuple[int, ...]
    ddp_alone: bool = True

    @property
    def counts(self) -> tuple[int, ...]:
        """How many devices cells have, over all their nodes."""
        return tuple(sorted({*self.devices, *(one.devices for one in layouts_of(self))}))

    @property
    def most_on_a_node(self) -> int:
        """The most devices that a cell has on one node."""
        return max((*self.devices, *(one.per_node for one in layouts_of(self))))


def layouts_of(matrix: Matrix) -> tuple[Layout, ...]:
    """The layouts over several nodes, the fewest nodes first."""
    return tuple(map(parse_layout, matrix.layouts))


_NO_VARIANTS = Variants()


def check_micro_batches(matrix: Matrix) -> None:
    """Raise SettingError where micro-batches of a cell would not be equal.

    Not every matrix has to hold it: that of cells measured by hand is their union, of which each alone was checked.
    """
    for batch_size in matrix.batch_sizes or ():
        shares = {batch_size}
        if matrix.scaling != "weak":
            counts = (*(matrix.devices or ()), *(one.devices for one in layouts_of(matrix)))
            shares |= {batch_size // devices for devices in counts if batch_size % devices == 0}
        for share in sorted(shares):
            for count in matrix.accumulate:
                if share % count:
                    raise SettingError(
                        f"{counted(share, 'sample')} per device cannot be cut into {count} equal micro-batches; choose "
                        f"batch sizes that {count} divides (--batch-size is a whole step's, per device)",
                        accumulate=matrix.accumulate,
                    )


def _all_positive(numbers: tuple[int, ...] | None) -> bool:
    return numbers is None or (len(numbers) > 0 and min(numbers) >= 1)


def _wrong_layouts(texts: tuple[str, ...]) -> str:
    """Why one of the texts is no layout; empty where all are."""
    try:
        for text in texts:
            parse_layout(text)
    except ValueError as error:
        return str(error)
    return ""


def _wrong_arguments(text: str) -> str:
    """Why a text names no arguments of DDP; empty where it does."""
    try:
        ddp_arguments(text)
    except ValueError as error:
        return str(error)
    return ""
