"""From a TOML file and flags to a RunConfig, validated at once. Imports no torch."""

import csv
import io
import os.path
import re
import tomllib
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import NoneType
from typing import Any, Literal, TypeVar, get_args, get_origin

import msgspec

from dpscope.profiling.machine.link_specifications import parse_link
from dpscope.profiling.records.config import Measurement, Optimizer, Reporting, RunConfig, Workload
from dpscope.profiling.records.matrix import Amp, Matrix, check_micro_batches
from dpscope.profiling.records.run import Cell, PublishedValue
from dpscope.profiling.records.settings import (
    Setting,
    SettingError,
    declarations,
    idle_settings,
    value_text,
)
from dpscope.profiling.records.training import TrainConfig
from dpscope.profiling.records.typed_text import choose_from, nearest
from dpscope.profiling.store.errors import DpscopeError, read_option, unreadable


def read_published(path: Path, origin: str = "--published") -> tuple[PublishedValue, ...]:
    """The rows of a table whose headings are the fields of PublishedValue; raises DpscopeError
    naming the row.
    """
    try:
        content = path.read_text(encoding="utf-8")
    except OSError as error:
        raise DpscopeError(f"{origin} {unreadable(path, error)}; check the path") from error
    except UnicodeDecodeError as error:
        raise DpscopeError(f"{origin} {path}: not UTF-8 text; name a CSV file in UTF-8") from error
    reader = csv.DictReader(io.StringIO(content, newline=""))
    headings = reader.fieldnames or ()
    missing = [name for name in PublishedValue.__struct_fields__ if name not in headings]
    if missing:
        raise DpscopeError(
            f"{origin} {path}: no column {missing[0]}; see examples/published/cell_values.csv"
        )
    values = []
    for row in reader:
        try:
            values.append(msgspec.convert(dict(row), PublishedValue, strict=False))
        except msgspec.ValidationError as error:
            message = str(error).replace("`$.", "column `")
            raise DpscopeError(
                f"{origin} {path}, row {reader.line_num}: {message}; correct that row"
            ) from error
    return tuple(values)


def published_of(
    values: Collection[PublishedValue], workload: Workload, cells: Collection[Cell]
) -> list[PublishedValue]:
    """Those of these cells: the same model, data, strategy, devices and batch; a variant and
    dp-host have none.
    """
    wanted = {
        (cell.strategy, cell.devices, cell.batch_size)
        for cell in cells
        if not cell.variant and cell.nodes == 1
    }
    matching = []
    for value in values:
        is_trained = (value.model, value.data) == (workload.model, workload.data)
        if is_trained and (value.strategy, value.devices, value.batch_size) in wanted:
            matching.append(value)
    return matching


_Struct = TypeVar("_Struct", bound=msgspec.Struct)

_ALL = {**declarations(TrainConfig), **declarations(RunConfig)}


def load_config(config_path: Path | None, flags: dict[str, object]) -> RunConfig:
    """The configuration of a TOML file overlaid by flags.

    Keys of both are the flags' names, with ``_`` or ``-`` (`batch_size = "32,128"`), or settings'
    names; lists may be given as lists or as text. `flags` holds only the flags that were given;
    None counts as not given. Raises DpscopeError naming field, value and fix.
    """
    given, origins = given_settings(config_path, flags, declarations(RunConfig))
    link = given.get("link")
    if link is not None:
        given["link"] = str(link)
        read_option(origins["link"], str(link), parse_link)
    table = given.get("published")
    if table is not None:
        folder = Path()
        if config_path is not None and flags.get("published") is None:
            folder = config_path.parent  # a file's paths are relative to it
        read_published(folder / str(table), origins["published"])
        given["published"] = os.path.normpath(folder / str(table))
    workload = build(Workload, given, origins)
    with raising_user_errors(origins):
        config = RunConfig(
            workload=workload,
            optimizer=build(Optimizer, given, origins),
            measurement=build(Measurement, given, origins),
            matrix=build_matrix(given, origins, workload.amp),
            reporting=build(Reporting, given, origins),
        )
    check_idle(config, origins)
    return config


def check_idle(config: msgspec.Struct, origins: Mapping[str, str]) -> None:
    """Raise DpscopeError for a setting without effect that was given as a flag; a file may serve
    several commands.
    """
    for field, why in idle_settings(config).items():
        if origins.get(field, "").startswith("--"):
            raise DpscopeError(f"{origins[field]} does nothing here: {why}; omit it")


def given_settings(
    config_path: Path | None, flags: Mapping[str, object], declared: Mapping[str, Setting]
) -> tuple[dict[str, object], dict[str, str]]:
    """Settings as a file and flags give them, texts read, and where each was given, such as
    ``--lr``; raises DpscopeError.
    """
    given: dict[str, object] = {}
    origins: dict[str, str] = {}
    content = {} if config_path is None else _read_toml(config_path)
    content.pop("out", None)  # where a run lies is not a setting of it: `out_folder`
    for key, value in content.items():
        if isinstance(value, dict):
            raise DpscopeError(
                f"{config_path}: [{key}] is a table; write its settings above all tables, without [{key}]"
            )
        field = _field_name(key, f"{config_path}: {key}", declared)
        if field in given:
            first = origins[field].removesuffix(" =")
            raise DpscopeError(f"{first}: set again as {key}; keep one of them")
        given[field] = value
        origins[field] = f"{config_path}: {key} ="
    for key, value in flags.items():
        if value is not None:
            field = _field_name(key, f"--{key}", declared)
            given[field] = value
            origins[field] = flag_name(field, value)
    # one text may set several settings: --devices 1,2x4 sets `devices` and `layouts`
    for field, value in list(given.items()):
        for name, part in _read_setting(declared[field], value, origins[field]).items():
            given[name] = part
            origins.setdefault(name, origins[field])
    return given, origins


def _read_setting(declared: Setting, value: object, origin: str) -> dict[str, object]:
    """The values that a setting's text stands for, also those of the other settings that it
    sets.
    """
    if isinstance(value, list | tuple) and declared.joins(value):
        value = ",".join(map(str, value))
    if declared.text is None or not isinstance(value, str | int | float):
        return {}
    parsed = read_text(str(value), declared.text, origin, declared.example)
    if not declared.sets:
        return {declared.name: parsed}
    first, *others = parsed
    further = zip(declared.sets, others, strict=True)
    return {declared.name: first} | {name: part for name, part in further if part}


def out_folder(config_path: Path | None) -> Path | None:
    """The run folder that a TOML file names with ``out``, if it does; raises DpscopeError where
    that is not a path.
    """
    out = _read_toml(config_path).get("out") if config_path is not None else None
    if out is not None and not (isinstance(out, str) and out):
        raise DpscopeError(
            f'{config_path}: out = {out!r}: must be a folder, such as out = "runs/mine"'
        )
    return Path(out) if out is not None else None


def flag_name(field: str, value: object = None) -> str:
    """The flag that sets a setting, such as ``--batch-size`` for ``batch_sizes``; of a switch that
    is off ``--no-...``.
    """
    option = _ALL[field].option if field in _ALL else field
    start = "--no-" if value is False else "--"
    return start + option.replace("_", "-")


def _read_toml(path: Path) -> dict[str, object]:
    try:
        # editors on Windows begin files with a mark
        return tomllib.loads(path.read_text("utf-8-sig"))
    except OSError as error:
        raise DpscopeError(f"--config: {unreadable(path, error)}; check the path") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise DpscopeError(f"--config {path}: not TOML: {error}; correct that line") from error


def _field_name(key: str, origin: str, declared: Mapping[str, Setting]) -> str:
    name = key.replace("-", "_")
    # an option may have another name than its setting: --batch-size sets `batch_sizes`
    by_option = {
        declaration.option: field for field, declaration in declared.items() if declaration.help
    }
    if name not in by_option and name not in declared:
        close = nearest(name, by_option)
        if close:
            raise DpscopeError(f"{origin}: no such setting; did you mean {close[0]}?")
        raise DpscopeError(f"{origin}: no such setting; known are {', '.join(sorted(by_option))}")
    return by_option.get(name, name)


def build(kind: type[_Struct], given: Mapping[str, object], origins: Mapping[str, str]) -> _Struct:
    """A part or a configuration from those of the given values that are its fields', lists as
    tuples or lists.

    Raises DpscopeError.
    """
    values = {}
    for name, value in given.items():
        if name in kind.__struct_fields__:
            values[name] = tuple(value) if isinstance(value, list) else value
    try:
        return msgspec.convert(values, kind, strict=False)
    except msgspec.ValidationError as error:
        with raising_user_errors(origins):
            if isinstance(error.__cause__, SettingError):
                raise error.__cause__ from None
        raise DpscopeError(_conversion_message(str(error), kind, values, origins)) from error


def build_matrix(given: Mapping[str, object], origins: Mapping[str, str], amp: Amp) -> Matrix:
    """As `build`, of batches that can be cut into micro-batches; `amp` is the workload's precision,
    no variant of it.
    """
    matrix = build(Matrix, given, origins)
    others = tuple(amp_variant for amp_variant in matrix.amp_variants if amp_variant != amp)
    matrix = msgspec.structs.replace(matrix, amp_variants=others)
    with raising_user_errors(origins):
        check_micro_batches(matrix)
    return matrix


@contextmanager
def raising_user_errors(origins: Mapping[str, str] | None = None) -> Iterator[None]:
    """Turns a SettingError into a DpscopeError of one line that names where each setting was given,
    by default its flag.
    """
    try:
        yield
    except SettingError as error:
        raise DpscopeError(
            error.message(lambda name: (origins or {}).get(name, flag_name(name)))
        ) from error


def read_text(text: str, parse: Callable[[str], Any], origin: str, example: str) -> Any:
    """What `parse` makes of a text; its ValueError becomes a DpscopeError that names where the text
    stood.
    """
    try:
        return parse(text)
    except ValueError as error:
        mistake = f"{origin} {text}: {error}"
        if example:
            mistake += f"; write it as {example}"
        raise DpscopeError(mistake) from error


def _conversion_message(
    error: str, kind: type[msgspec.Struct], values: Mapping[str, object], origins: Mapping[str, str]
) -> str:
    """One line on a value that does not fit its field of `kind`, from msgspec's error."""
    where = re.search(r"at `\$\.(\w+)", error)
    field = where[1] if where else ""
    value = values.get(field)
    reason = error.partition(" - at ")[0]
    declared = declarations(kind).get(field)
    if declared is not None and "Invalid enum value" in reason:
        words = value if isinstance(value, list | tuple) else [value]
        unknown = [word for word in words if word not in declared.choices]
        reason = f"unknown; {choose_from(unknown[0], declared.choices)}"
    elif declared is not None:
        reason = f"must be {_in_words(declared.kind)}"
    return f"{origins.get(field, flag_name(field))} {value_text(value)}: {reason}"


def _in_words(kind: Any) -> str:
    """What values of a field's type are called."""
    members = get_args(kind)
    if get_origin(kind) is tuple:
        return f"a list of values, each {_in_words(members[0])}"
    if get_origin(kind) is Literal:
        return " or ".join(map(str, members))
    words = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
    if kind in words:
        return words[kind]
    return " or ".join(_in_words(member) for member in members if member is not NoneType)


def setting_text(field: str, value: object) -> str:
    """A setting as the option that makes it, such as ``--strategy single,ddp``."""
    if isinstance(value, bool):
        return flag_name(field, value)
    if value is None:
        return f"no {flag_name(field)}"
    return f"{flag_name(field)} {value_text(value)}"
