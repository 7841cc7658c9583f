"""From a TOML file and flags to a RunConfig, validated at once. Imports no torch."""

import difflib
import math
import re
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path
from types import NoneType
from typing import Literal, get_args, get_origin

import msgspec

from dpscope.launch.planning import variants
from dpscope.launch.planning.idle_settings import check_idle, idle_fields
from dpscope.profiling.machine.link_text import parse_link
from dpscope.profiling.records.run import RunConfig
from dpscope.profiling.store.errors import DpscopeError

_LONGEST_TIMEOUT_S = 1e7  # 115 days; what waits for it counts in nanoseconds
MINIMUM_WARMUP_STEPS = 5  # DDP rebuilds its buckets in the first iterations

_FIELD_OF_FLAG = {
    "strategy": "strategies",
    "batch_size": "batch_sizes",
    "lr": "learning_rate",
    "warmup": "warmup_steps",
    "timeout": "timeout_s",
}
_REPLACED = {"link_gbps": 'it is link now, with a unit: link = "25GB/s" (bytes) or link = "200Gb/s" (bits)'}
_FLAG_OF_FIELD = {field: flag for flag, field in _FIELD_OF_FLAG.items()}


def load_config(config_path: Path | None, flags: dict[str, object]) -> RunConfig:
    """The configuration of a TOML file overlaid by flags.

    Keys of both are the flags' names, with ``_`` or ``-`` (`batch_size = "32,128"`), or RunConfig's field
    names; lists may be given as lists or as text. `flags` holds only the flags that were given; None counts as
    not given. Raises DpscopeError naming field, value and fix.
    """
    given, origins = given_settings(config_path, flags, RunConfig.__struct_fields__)
    return build_config(given, origins)


def given_settings(
    config_path: Path | None, flags: dict[str, object], fields: Sequence[str]
) -> tuple[dict[str, object], dict[str, str]]:
    """What a file and flags say of `fields`, and where each was said, such as ``--lr``; raises DpscopeError."""
    given: dict[str, object] = {}
    origins: dict[str, str] = {}
    if config_path is not None:
        for key, value in _read_toml(config_path).items():
            field = _field_name(key, f"{config_path}: {key}", fields)
            given[field], origins[field] = value, f"{config_path}: {key} ="
    for key, value in flags.items():
        if value is not None:
            field = _field_name(key, f"--{key}", fields)
            given[field], origins[field] = value, flag_name(field)
    return given, origins


def flag_name(field: str) -> str:
    """The flag that sets a field of RunConfig, such as ``--batch-size`` for ``batch_sizes``."""
    return "--" + _FLAG_OF_FIELD.get(field, field).replace("_", "-")


def parse_devices(text: str) -> tuple[int, ...]:
    """Device counts from ``1,2,4``; raises ValueError."""
    return tuple(sorted(set(whole_numbers(text))))


def parse_batch_sizes(text: str) -> tuple[tuple[int, ...], int | None]:
    """Batch sizes and growth factor from ``32,128`` (no growth) or ``32x4`` (32, 128, 512, ...).

    Raises ValueError.
    """
    growing = re.fullmatch(r"\s*(\d+)\s*x\s*(\d+)\s*", text)
    if growing:
        return (int(growing[1]),), int(growing[2])
    return tuple(sorted(set(whole_numbers(text)))), None


def whole_numbers(text: str) -> tuple[int, ...]:
    """Numbers from ``6,8``, in their order; raises ValueError."""
    return tuple(_whole_number(part) for part in text.split(","))


def _whole_number(text: str) -> int:
    if not re.fullmatch(r"\s*-?\d+\s*", text):
        raise ValueError(f"{text.strip() or 'nothing'} is not a whole number")
    return int(text)


def _read_toml(path: Path) -> dict[str, object]:
    try:
        return tomllib.loads(path.read_text())
    except OSError as error:
        raise DpscopeError(f"--config {path}: cannot read it: {error.strerror}; check the path") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise DpscopeError(f"--config {path}: not TOML: {error}; correct that line") from error


def _field_name(key: str, origin: str, fields: Sequence[str]) -> str:
    name = key.replace("-", "_")
    field = _FIELD_OF_FLAG.get(name, name)
    if name in _REPLACED:
        raise DpscopeError(f"{origin}: {_REPLACED[name]}")
    if field not in fields:
        known = sorted(_FLAG_OF_FIELD.get(name, name) for name in fields)
        if close := difflib.get_close_matches(name, known, n=1):
            raise DpscopeError(f"{origin}: no such setting; did you mean {close[0]}?")
        raise DpscopeError(f"{origin}: no such setting; known are {', '.join(known)}")
    return field


def build_config(given: dict[str, object], origins: dict[str, str]) -> RunConfig:
    """The configuration from the values of its fields, lists as lists or text; raises DpscopeError."""
    values = dict(given)
    if values.get("link") is not None:
        values["link"] = _checked_link(str(values["link"]), origins["link"])
    if isinstance(values.get("amp"), list | tuple):
        values["amp"] = ",".join(str(one) for one in values["amp"])  # type: ignore[attr-defined]
    for field, parse in _TEXT_PARSERS.items():
        if isinstance(values.get(field), str | int | float):
            _parse_text(values, field, parse, origins)
    for field in ("devices", "batch_sizes", *variants.VARIANT_FIELDS):
        if isinstance(values.get(field), list | tuple):
            values[field] = tuple(values[field])  # type: ignore[arg-type]
    try:
        config = msgspec.convert(values, RunConfig, strict=False)
    except msgspec.ValidationError as error:
        raise DpscopeError(conversion_message(str(error), RunConfig, _CHOICES, values, origins)) from error
    config = _in_order(config)
    for field, ok, fix in _checks(config):
        if not ok:
            raise DpscopeError(f"{origins.get(field, flag_name(field))} {shown(getattr(config, field))}: {fix}")
    _check_together(config, origins)
    return config


def _checked_link(text: str, origin: str) -> str:
    """The text, which states a link; raises DpscopeError for one that states none."""
    try:
        parse_link(text)
    except ValueError as error:
        raise DpscopeError(f"{origin} {error}") from error
    return text


def _in_order(config: RunConfig) -> RunConfig:
    """Lists without repetition: numbers ascending, strategies in the order of the report."""
    order = ("single", "dp", "ddp")
    return msgspec.structs.replace(
        variants.in_order(config),
        strategies=tuple(strategy for strategy in order if strategy in config.strategies),
        devices=None if config.devices is None else tuple(sorted(set(config.devices))),
        batch_sizes=None if config.batch_sizes is None else tuple(sorted(set(config.batch_sizes))),
    )


def _parse_text(values: dict[str, object], field: str, parse: Callable[[str], object], origins: dict[str, str]) -> None:
    parsed = read_text(str(values[field]), parse, origins[field], _EXAMPLES.get(field, "1,2,4"))
    if field == "amp":
        assert isinstance(parsed, tuple)
        values["amp"], values["amp_variants"] = parsed
    elif field == "batch_sizes":
        assert isinstance(parsed, tuple)
        values["batch_sizes"], growth = parsed
        if growth is not None:
            values["batch_growth"] = growth
            origins.setdefault("batch_growth", origins[field])
    else:
        values[field] = parsed


def read_text(text: str, parse: Callable[[str], object], origin: str, example: str) -> object:
    """What `parse` makes of a text; its ValueError becomes a DpscopeError that says where the text stood."""
    try:
        return parse(text)
    except ValueError as error:
        raise DpscopeError(f"{origin} {text}: {error}; write it as {example}") from error


_TEXT_PARSERS: dict[str, Callable[[str], object]] = {
    "devices": parse_devices,
    "batch_sizes": parse_batch_sizes,
    "strategies": lambda text: tuple(part.strip() for part in text.split(",")),
    "amp": variants.precisions,
    **variants.TEXT_PARSERS,
}
_CHOICES = {
    "strategies": "single, dp, ddp",
    "device": "auto, cuda, cpu",
    "scaling": "weak, strong, both",
    "data": "synthetic, fake, digits, cifar10",
    "amp": "off, bf16, fp16",
    "amp_variants": "off, bf16, fp16",
    **variants.CHOICES,
}
_EXAMPLES = {"batch_sizes": "32,128 or 32x4", **variants.EXAMPLES}


def conversion_message(
    error: str, kind: type[msgspec.Struct], choices: dict[str, str], values: dict[str, object], origins: dict[str, str]
) -> str:
    """One line on a value that does not fit its field of `kind`, from msgspec's error."""
    where = re.search(r"at `\$\.(\w+)", error)
    field = where[1] if where else ""
    reason = error.partition(" - at ")[0]
    if "Invalid enum value" in reason:
        reason = f"unknown; choose from {choices.get(field, 'the documented values')}"
    elif field in kind.__struct_fields__:
        reason = f"must be {_in_words(kind.__annotations__[field])}"
    return f"{origins.get(field, flag_name(field))} {shown(values.get(field))}: {reason}"


def _in_words(kind: object) -> str:
    """What values of a field's type are called."""
    members = get_args(kind)
    if get_origin(kind) is tuple:
        return f"a list of values, each {_in_words(members[0])}"
    if get_origin(kind) is Literal:
        return " or ".join(str(member) for member in members)
    words = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
    return (
        words[kind] if isinstance(kind, type) else " or ".join(_in_words(one) for one in members if one is not NoneType)
    )


def shown(value: object) -> str:
    """A setting's value as it is written on the command line."""
    return ",".join(str(part) for part in value) or "(none)" if isinstance(value, list | tuple) else str(value)


def setting_text(field: str, value: object) -> str:
    """A setting as the option that makes it, such as ``--strategy single,ddp``."""
    if isinstance(value, bool):
        return f"--{'' if value else 'no-'}{flag_name(field).removeprefix('--')}"
    return f"no {flag_name(field)}" if value is None else f"{flag_name(field)} {shown(value)}"


def _checks(config: RunConfig) -> list[tuple[str, bool, str]]:
    """(field, whether it holds, the fix) of every field that can be wrong by itself."""
    return [
        ("strategies", bool(config.strategies), "no strategy; choose from single, dp, ddp"),
        ("devices", _all_positive(config.devices), "every device count must be 1 or more"),
        ("batch_sizes", _all_positive(config.batch_sizes), "every batch size must be 1 or more"),
        ("batch_growth", config.batch_growth is None or config.batch_growth >= 2, "growth must be 2 or more"),
        ("samples", config.samples >= 1, "an epoch needs 1 sample or more"),
        ("workers", config.workers >= 0, "must be 0 or more; 0 loads in the training process"),
        ("workers_total", (config.workers_total or 0) >= 0, "must be 0 or more"),
        ("learning_rate", 0 < config.learning_rate < math.inf, "must be a number above 0"),
        ("momentum", 0 <= config.momentum < math.inf, "must be a number, 0 or more"),
        ("weight_decay", 0 <= config.weight_decay < math.inf, "must be a number, 0 or more"),
        ("seed", 0 <= config.seed < 2**63, "must be 0 or more and below 2^63"),
        (
            "warmup_steps",
            config.warmup_steps >= MINIMUM_WARMUP_STEPS,
            f"must be {MINIMUM_WARMUP_STEPS} or more: DDP rebuilds its buckets in the first steps",
        ),
        ("steps", config.steps is None or config.steps >= 1, "must be 1 or more"),
        ("epochs", config.epochs is None or config.epochs >= 1, "must be 1 or more"),
        ("traced_steps", config.traced_steps >= 1, "must be 1 or more"),
        ("repeats", config.repeats >= 1, "must be 1 or more"),
        ("timeout_s", 0 < config.timeout_s <= _LONGEST_TIMEOUT_S, "must be above 0 seconds and at most 1e7"),
        (
            "target_efficiency",
            config.target_efficiency is None or 0 < config.target_efficiency <= 1,
            "must be above 0 and at most 1; 0.8 is 80%",
        ),
        *variants.variant_checks(config),
    ]


def _all_positive(numbers: tuple[int, ...] | None) -> bool:
    return numbers is None or (len(numbers) > 0 and min(numbers) >= 1)


def _check_together(config: RunConfig, origins: dict[str, str]) -> None:
    if config.steps is not None and config.epochs is not None:
        raise DpscopeError(
            f"--steps {config.steps} and --epochs {config.epochs}: give one of them; "
            "--epochs times whole epochs, --steps that many steps"
        )
    if config.batch_growth is not None and len(config.batch_sizes or ()) != 1:
        raise DpscopeError(
            f"{origins.get('batch_growth', 'batch_growth')} {config.batch_growth}: "
            "growth needs one batch size to start from, as in --batch-size 32x4"
        )
    variants.check_variants(config, origins)
    check_idle(idle_fields(config), origins)
