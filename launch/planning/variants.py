"""Variants of the strategies: read from text, checked, and combined into the options of cells. Imports no torch."""

import itertools
from collections.abc import Callable, Mapping
from typing import TypeVar, get_args

import msgspec

from dpscope.profiling.records.ddp_arguments import ddp_arguments
from dpscope.profiling.records.run import Amp, CellOptions, CommHook, RunConfig, Switch
from dpscope.profiling.store.errors import DpscopeError

SWITCHES = ("overlap", "gradient_as_bucket_view", "static_graph", "broadcast_buffers")
DDP_FIELDS = ("comm_hook", "bucket_mb", "ddp_args", *SWITCHES)
VARIANT_FIELDS = (*DDP_FIELDS, "accumulate")
CHOICES = {"comm_hook": "none, fp16, bf16, powersgd", **dict.fromkeys(SWITCHES, "on, off")}
EXAMPLES = {
    "comm_hook": "none,fp16",
    "bucket_mb": "default,5",
    "accumulate": "1,4",
    "ddp_args": "default;batched_grad_copy=true",
    **dict.fromkeys(SWITCHES, "on or off, or on,off to compare them"),
}

_ORDERS: dict[str, tuple[str, ...]] = {"comm_hook": get_args(CommHook), **dict.fromkeys(SWITCHES, get_args(Switch))}
_DEFAULTS = RunConfig()
_LARGEST_BUCKET_MB = 1 << 20  # a TiB

ConfigT = TypeVar("ConfigT", bound=RunConfig)
_Number = TypeVar("_Number", int, float)


def _split(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(","))


def _switches(text: str) -> tuple[str, ...]:
    words = {"true": "on", "false": "off"}  # what TOML and plain flags say
    return tuple(words.get(part.lower(), part) for part in _split(text))


def _bucket_sizes(text: str) -> tuple[float | str, ...]:
    return tuple(part if part == "default" else _number(part, float, "a number") for part in _split(text))


def _whole_numbers(text: str) -> tuple[int, ...]:
    return tuple(_number(part, int, "a whole number") for part in _split(text))


def _number(text: str, kind: Callable[[str], _Number], called: str) -> _Number:
    try:
        return kind(text)
    except ValueError as error:
        raise ValueError(f"{text or 'nothing'} is not {called}") from error


TEXT_PARSERS: dict[str, Callable[[str], object]] = {
    "comm_hook": _split,
    "bucket_mb": _bucket_sizes,
    "accumulate": _whole_numbers,
    "ddp_args": lambda text: tuple(" ".join(part.split()) for part in text.split(";")),
    **dict.fromkeys(SWITCHES, _switches),
}
"""From one text to the values of a field; each raises ValueError for what is no such value."""


def in_order(config: ConfigT) -> ConfigT:
    """The variants' values without repetition, in the order of the documentation, numbers ascending."""
    ordered: dict[str, object] = {
        field: tuple(value for value in order if value in getattr(config, field)) for field, order in _ORDERS.items()
    }
    sizes = set(config.bucket_mb)
    named: list[object] = ["default"] if "default" in sizes else []
    ordered["bucket_mb"] = (*named, *sorted(size for size in sizes if not isinstance(size, str)))
    ordered["accumulate"] = tuple(sorted(set(config.accumulate)))
    ordered["ddp_args"] = tuple(sorted(set(config.ddp_args), key=lambda one: (one != "default", one)))
    ordered["amp_variants"] = tuple(one for one in get_args(Amp) if one in config.amp_variants and one != config.amp)
    return msgspec.structs.replace(config, **ordered)


def merged(config: ConfigT, added: RunConfig) -> ConfigT:
    """`config` with the variants of both."""
    both = {field: (*getattr(config, field), *getattr(added, field)) for field in VARIANT_FIELDS}
    return in_order(msgspec.structs.replace(config, **both))


def variant_checks(config: RunConfig) -> list[tuple[str, bool, str]]:
    """(field, whether it holds, the fix) of every variant that can be wrong by itself."""
    sizes = [size for size in config.bucket_mb if not isinstance(size, str)]
    return [
        *(
            (field, bool(getattr(config, field)), f"no value; write it as {EXAMPLES[field]}")
            for field in VARIANT_FIELDS
        ),
        (
            "bucket_mb",
            all(0 < size <= _LARGEST_BUCKET_MB for size in sizes),
            f"must be above 0 MiB and at most {_LARGEST_BUCKET_MB}; --overlap off makes one bucket of everything",
        ),
        ("accumulate", min(config.accumulate, default=1) >= 1, "must be 1 or more micro-batches"),
        *(("ddp_args", not wrong, wrong) for wrong in map(_wrong_arguments, config.ddp_args)),
    ]


def check_variants(config: RunConfig, origins: Mapping[str, str]) -> None:
    """Raise DpscopeError for variants that contradict each other or the rest of the configuration.

    `origins` says where a field came from, such as ``--overlap``.
    """

    def told(field: str) -> str:
        flag = origins.get(field, "--" + field.replace("_", "-"))
        return f"{flag} {','.join(str(value) for value in getattr(config, field))}"

    if config.overlap == ("off",) and config.bucket_mb != ("default",):
        raise DpscopeError(
            f"{told('bucket_mb')} with {told('overlap')}: without overlap one bucket holds all gradients; "
            "leave one of them away, or compare with --overlap on,off"
        )
    if "ddp" not in config.strategies:
        for field in DDP_FIELDS:
            if getattr(config, field) != getattr(_DEFAULTS, field):
                raise DpscopeError(
                    f"{told(field)}: only DDP has it, and ddp is not in --strategy {','.join(config.strategies)}; "
                    "add ddp, or omit it"
                )
    for batch_size in config.batch_sizes or ():
        _check_micro_batches(config, batch_size, told("accumulate"))


def _check_micro_batches(config: RunConfig, batch_size: int, told: str) -> None:
    shares = {batch_size}
    if config.scaling != "weak":
        shares |= {batch_size // devices for devices in config.devices or () if batch_size % devices == 0}
    for share in sorted(shares):
        for count in config.accumulate:
            if share % count:
                raise DpscopeError(
                    f"{told}: {share} samples per device cannot be cut into {count} equal micro-batches; "
                    f"choose batch sizes that {count} divides (--batch-size is a whole step's, per device)"
                )


def ddp_options(config: RunConfig) -> tuple[CellOptions, ...]:
    """The options of DDP's cells: every combination of the variants, the defaults' first if it is among them.

    Without overlap a bucket holds everything, so bucket sizes make no difference there.
    """
    fields = (
        *("accumulate", "amp", "broadcast_buffers", "static_graph", "gradient_as_bucket_view", "comm_hook", "ddp_args"),
        "bucket_mb",
    )
    values_of = {field: getattr(config, field) for field in fields if field != "amp"}
    values_of["amp"] = _precisions(config)
    found: dict[CellOptions, None] = {}
    for overlap in config.overlap:
        for values in itertools.product(*(values_of[field] for field in fields)):
            chosen = dict(zip(fields, values, strict=True))
            size = chosen.pop("bucket_mb")
            chosen["bucket_mb"] = None if size == "default" or overlap == "off" else size
            found.setdefault(CellOptions(overlap=overlap, **chosen))
    return tuple(found)


def other_options(config: RunConfig) -> tuple[CellOptions, ...]:
    """The options of single and DataParallel cells: micro-batches and precisions, and no other variant."""
    return tuple(CellOptions(accumulate=count, amp=amp) for count in config.accumulate for amp in _precisions(config))


def _precisions(config: RunConfig) -> tuple[Amp | None, ...]:
    """Of cells: the run's own, then the others."""
    return (None, *config.amp_variants)


def precisions(text: str) -> tuple[str, tuple[str, ...]]:
    """The run's precision and the others from ``off,bf16``: the first in the order of the documentation is the run's."""
    given = set(_split(text))
    known: list[str] = [one for one in get_args(Amp) if one in given]
    first, *others = known + sorted(given - set(known))
    return first, tuple(others)


def _wrong_arguments(text: str) -> str:
    """Why a text names no arguments of DDP; empty where it does."""
    try:
        ddp_arguments(text)
    except ValueError as error:
        return str(error)
    return ""
