"""From a TOML file and flags to a RunConfig, validated at once. Imports no torch."""

import os.path
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import NoneType
from typing import Literal, TypeVar, get_args, get_origin

import msgspec

from dpscope.launch.planning import variants
from dpscope.launch.planning.idle_settings import check_idle, idle_settings
from dpscope.launch.planning.published import read_published
from dpscope.profiling.machine.link_text import parse_link
from dpscope.profiling.records.config import Measurement, Optimizer, Reporting, RunConfig, Workload
from dpscope.profiling.records.matrix import VARIANT_EXAMPLES, Amp, Matrix, check_micro_batches, parse_layout
from dpscope.profiling.records.settings import ConfigPart, SettingError, setting_names, shown
from dpscope.profiling.records.strategies import STRATEGY_LIST
from dpscope.profiling.records.typed_text import choose_from, nearest
from dpscope.profiling.store.errors import DpscopeError, unreadable

_Part = TypeVar("_Part", bound=ConfigPart)

_FIELD_OF_FLAG = {
    "strategy": "strategies",
    "batch_size": "batch_sizes",
    "lr": "learning_rate",
    "warmup": "warmup_steps",
    "timeout": "timeout_s",
}
_REPLACED = {"link_gbps": 'it is link now, with a unit: link = "25GB/s" (bytes) or link = "200Gb/s" (bits)'}
_FLAG_OF_FIELD = {field: flag for flag, field in _FIELD_OF_FLAG.items()} | {"layouts": "devices"}


def load_config(config_path: Path | None, flags: dict[str, object]) -> RunConfig:
    """The configuration of a TOML file overlaid by flags.

    Keys of both are the flags' names, with ``_`` or ``-`` (`batch_size = "32,128"`), or settings'
    names; lists may be given as lists or as text. `flags` holds only the flags that were given; None counts as
    not given. Raises DpscopeError naming field, value and fix.
    """
    given, origins = given_settings(config_path, flags, setting_names(RunConfig))
    if given.get("link") is not None:
        given["link"] = _checked_link(str(given["link"]), origins["link"])
    if given.get("published") is not None:
        beside = config_path.parent if config_path is not None and flags.get("published") is None else Path()
        given["published"] = _checked_published(beside / str(given["published"]), origins["published"])
    workload = build_part(Workload, given, origins)
    with settings_told(origins):
        config = RunConfig(
            workload=workload,
            optimizer=build_part(Optimizer, given, origins),
            measurement=build_part(Measurement, given, origins),
            matrix=build_matrix(given, origins, workload.amp),
            reporting=build_part(Reporting, given, origins),
        )
    check_idle(idle_settings(config.workload, config.matrix), origins)
    return config


def given_settings(
    config_path: Path | None, flags: dict[str, object], fields: Sequence[str]
) -> tuple[dict[str, object], dict[str, str]]:
    """What a file and flags say of `fields`, and where each was said, such as ``--lr``; raises DpscopeError."""
    given: dict[str, object] = {}
    origins: dict[str, str] = {}
    if config_path is not None:
        for key, value in _read_toml(config_path).items():
            if key == "out":  # where a run lies is not a setting of it: `out_folder`
                continue
            field = _field_name(key, f"{config_path}: {key}", fields)
            given[field], origins[field] = value, f"{config_path}: {key} ="
    for key, value in flags.items():
        if value is not None:
            field = _field_name(key, f"--{key}", fields)
            given[field], origins[field] = value, flag_name(field)
    if "amp" in given:  # the first is the workload's precision, the others are the matrix's
        precisions = given["amp"]
        given["amp"], given["amp_variants"] = variants.precisions(
            ",".join(map(str, precisions)) if isinstance(precisions, list | tuple) else str(precisions)
        )
    return given, origins


def out_folder(config_path: Path | None) -> Path | None:
    """The run folder that a TOML file names with ``out``, if it does; raises DpscopeError where that is not a path."""
    out = _read_toml(config_path).get("out") if config_path is not None else None
    if out is not None and not (isinstance(out, str) and out):
        raise DpscopeError(f'{config_path}: out = {out!r}: must be a folder, such as out = "runs/mine"')
    return Path(out) if out is not None else None


def flag_name(field: str) -> str:
    """The flag that sets a setting, such as ``--batch-size`` for ``batch_sizes``."""
    return "--" + _FLAG_OF_FIELD.get(field, field).replace("_", "-")


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
        raise DpscopeError(f"--config: {unreadable(path, error)}; check the path") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise DpscopeError(f"--config {path}: not TOML: {error}; correct that line") from error


def _field_name(key: str, origin: str, fields: Sequence[str]) -> str:
    name = key.replace("-", "_")
    field = _FIELD_OF_FLAG.get(name, name)
    if name in _REPLACED:
        raise DpscopeError(f"{origin}: {_REPLACED[name]}")
    if field not in fields:
        known = sorted(_FLAG_OF_FIELD.get(name, name) for name in fields)
        if close := nearest(name, known):
            raise DpscopeError(f"{origin}: no such setting; did you mean {close[0]}?")
        raise DpscopeError(f"{origin}: no such setting; known are {', '.join(known)}")
    return field


def build_part(kind: type[_Part], given: dict[str, object], origins: dict[str, str]) -> _Part:
    """A part of a configuration from what is given of its settings, lists as lists or text; raises DpscopeError."""
    values = {name: value for name, value in given.items() if name in kind.__struct_fields__}
    counts = values.get("devices")
    if isinstance(counts, list) and any("x" in str(count) for count in counts):  # a file's, layouts among them
        values["devices"] = ",".join(map(str, counts))
    if isinstance(sizes := values.get("bucket_mb"), list) and any(isinstance(size, str) for size in sizes):
        values["bucket_mb"] = ",".join(map(str, sizes))  # a file's, with units
    for field, parse in _TEXT_PARSERS.items():
        if isinstance(values.get(field), str | int | float):
            _parse_text(values, field, parse, origins)
    values = {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}
    try:
        return msgspec.convert(values, kind, strict=False)
    except msgspec.ValidationError as error:
        with settings_told(origins):
            if isinstance(error.__cause__, SettingError):
                raise error.__cause__ from None
        raise DpscopeError(conversion_message(str(error), kind, _CHOICES, values, origins)) from error


def _checked_link(text: str, origin: str) -> str:
    """The text, which states a link; raises DpscopeError for one that states none."""
    try:
        parse_link(text)
    except ValueError as error:
        raise DpscopeError(f"{origin} {error}") from error
    return text


def _checked_published(path: Path, origin: str) -> str:
    """The path of a table of published values; raises DpscopeError for one that is none."""
    read_published(path, origin)
    return os.path.normpath(path)


def build_matrix(given: dict[str, object], origins: dict[str, str], amp: Amp) -> Matrix:
    """As `build_part`, of batches that can be cut into micro-batches; `amp` is the workload's precision, no variant of it."""
    matrix = build_part(Matrix, given, origins)
    others = tuple(one for one in matrix.amp_variants if one != amp)
    matrix = msgspec.structs.replace(matrix, amp_variants=others)
    with settings_told(origins):
        check_micro_batches(matrix)
    return matrix


@contextmanager
def settings_told(origins: Mapping[str, str] | None = None) -> Iterator[None]:
    """Tells a mistake in settings as one line, with where each was given, by default its flag; raises DpscopeError."""
    try:
        yield
    except SettingError as error:
        raise DpscopeError(error.told(lambda name: (origins or {}).get(name, flag_name(name)))) from error


def _parse_text(values: dict[str, object], field: str, parse: Callable[[str], object], origins: dict[str, str]) -> None:
    parsed = read_text(str(values[field]), parse, origins[field], _EXAMPLES.get(field, "1,2,4"))
    if field == "devices":
        assert isinstance(parsed, tuple)
        values["devices"], layouts = parsed
        if layouts:
            values["layouts"] = layouts
            origins.setdefault("layouts", origins[field])
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
    "devices": parse_counts_and_layouts,
    "batch_sizes": parse_batch_sizes,
    "strategies": lambda text: tuple(part.strip() for part in text.split(",")),
    **variants.TEXT_PARSERS,
}
_CHOICES = {
    "strategies": STRATEGY_LIST,
    "device": "auto, cuda, cpu",
    "scaling": "weak, strong, both",
    "data": "synthetic, fake, digits, cifar10",
    "amp": "off, bf16, fp16",
    "amp_variants": "off, bf16, fp16",
    **variants.CHOICES,
}
_EXAMPLES = {"batch_sizes": "32,128 or 32x4", **VARIANT_EXAMPLES}


def conversion_message(
    error: str, kind: type[msgspec.Struct], choices: dict[str, str], values: dict[str, object], origins: dict[str, str]
) -> str:
    """One line on a value that does not fit its field of `kind`, from msgspec's error."""
    where = re.search(r"at `\$\.(\w+)", error)
    field = where[1] if where else ""
    reason = error.partition(" - at ")[0]
    if "Invalid enum value" in reason:
        reason = f"unknown; {_choice(choices[field].split(', '), values.get(field))}"
    elif kinds := [one.type for one in msgspec.structs.fields(kind) if one.name == field]:
        reason = f"must be {_in_words(kinds[0])}"
    return f"{origins.get(field, flag_name(field))} {shown(values.get(field))}: {reason}"


def _choice(known: Sequence[str], value: object) -> str:
    """What to give in place of the first value that is not known."""
    given = value if isinstance(value, list | tuple) else (value,)
    return choose_from(next((one for one in given if one not in known), value), known)


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


def setting_text(field: str, value: object) -> str:
    """A setting as the option that makes it, such as ``--strategy single,ddp``."""
    if isinstance(value, bool):
        return f"--{'' if value else 'no-'}{flag_name(field).removeprefix('--')}"
    return f"no {flag_name(field)}" if value is None else f"{flag_name(field)} {shown(value)}"
