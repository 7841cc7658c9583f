"""Settings: what is declared about each, and the settings of a configuration by name. Imports no
torch.

A setting is a field of a part of a configuration, made by `setting` with everything else about it:
help, reading, check, and when it has no effect. Flags and TOML files know no parts, so names are
unique within a configuration.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from inspect import get_annotations
from types import NoneType, UnionType
from typing import Any, ClassVar, Literal, TypeVar, Union, get_args, get_origin

import msgspec

from dpscope.profiling.records.stored import Stored
from dpscope.profiling.records.typed_text import switches, whole_numbers, words

_Config = TypeVar("_Config", bound=msgspec.Struct)

COMPARED, DATA, AMOUNT = "What is compared", "Model and data", "How much is measured"
TARGETS, FILES, NODES = "Links, models and targets", "Files and output", "Several nodes"
HEADINGS = (COMPARED, DATA, AMOUNT, TARGETS, FILES, NODES)
"""Of --help, in this order."""

Check = Callable[[Any], str]
"""The fix for a value that is refused; empty for a valid one."""


class Setting(msgspec.Struct, frozen=True, eq=False):
    """The declaration of a setting, in place of its field's default; `declarations` adds what its
    configuration determines.

    `text` reads the option's text. Where the same text also sets other fields (`sets`), it returns
    a tuple: a value for each. `idle` returns why the setting has no effect in a configuration, or
    nothing.
    """

    default: Any  # msgspec.NODEFAULT: none
    help: str = ""  # without it there is no option: the text of another one sets the field
    help_of: Mapping[str, str] = {}  # by command, where it differs
    option: str = ""  # the parameter's name, where it is not the field's
    heading: str = ""  # where it is not the part's
    argument: str = ""  # of DistributedDataParallel, where the setting is one
    listed: bool = False  # the command line refuses other values than the type's, and lists them
    # where it does not follow from the type; None: a single value is no text
    text: Callable[[str], Any] | None = None
    sets: tuple[str, ...] = ()
    # whether a file's list is read as text
    joins: Callable[[Sequence[object]], bool] = lambda _: False
    example: str = ""  # of a text; where it is not 1,2,4 or, of switches, on,off
    check: Check | None = None
    idle: Callable[[Any], str] | None = None
    name: str = ""
    part: str | None = None  # None: the configuration itself
    kind: Any = None  # the type of its values other than None
    moved: bool = False  # whether its heading is not the part's

    @property
    def choices(self) -> tuple[str, ...]:
        """The words that are valid values; empty where others are, too."""
        item = get_args(self.kind)[0] if get_origin(self.kind) is tuple else self.kind
        return get_args(item) if get_origin(item) is Literal else ()

    def declared_in(self, kind: type[msgspec.Struct], name: str, annotation: Any) -> "Setting":
        """The same setting with what follows from its configuration, its field and the field's
        type.
        """
        others = [part for part in get_args(annotation) if part is not NoneType]
        # `X | None`: the option reads an X
        is_optional = get_origin(annotation) in (Union, UnionType) and len(others) == 1
        plain = others[0] if is_optional else annotation
        named = msgspec.structs.replace(self, name=name, kind=plain, option=self.option or name)
        is_switch = named.choices == ("on", "off")
        read = self.text
        example = self.example
        if get_origin(plain) is tuple:
            several = whole_numbers if get_args(plain)[0] is int else words
            read = read or (switches if is_switch else several)
            example = example or ("on or off, or on,off to compare them" if is_switch else "1,2,4")
        usual: str = getattr(kind, "heading", "")
        heading = self.heading or usual
        return msgspec.structs.replace(
            named, text=read, example=example, heading=heading, moved=heading != usual
        )


setting: Callable[..., Any] = Setting
"""A field that is a setting, of any type."""


class _Declaring(msgspec.StructMeta):
    """Takes the settings of a class from the defaults of its fields."""

    def __new__(
        cls, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **options: Any
    ) -> "_Declaring":
        settings: dict[str, Setting] = {}
        others: dict[str, Any] = {"declared": settings}
        for field, value in namespace.items():
            if not isinstance(value, Setting):
                others[field] = value
                continue
            settings[field] = value
            # msgspec sees the default in the setting's place
            if value.default is not msgspec.NODEFAULT:
                others[field] = value.default
        return super().__new__(cls, name, bases, others, **options)


def holds(condition: Callable[[Any], bool], fix: str) -> Check:
    """A check of values other than None."""
    return lambda value: "" if value is None or condition(value) else fix


def at_least(least: int, fix: str = "") -> Check:
    """A check of numbers other than None."""
    return holds(lambda value: bool(value >= least), fix or f"must be {least} or more")


class SettingError(ValueError):
    """A value that a setting cannot have, or settings that exclude each other: which, their values
    and the fix.
    """

    def __init__(self, fix: str, joined: str = " with ", **settings: object) -> None:
        self.fix = fix
        self.joined = joined
        self.settings = settings
        super().__init__(self.message(lambda name: name))

    def message(self, called: Callable[[str], str]) -> str:
        """The mistake in one line; `called` returns what a setting is called where it was given,
        such as ``--lr``.
        """
        given = self.joined.join(
            f"{called(name)} {value_text(value)}" for name, value in self.settings.items()
        )
        return f"{given}: {self.fix}"


class Config(Stored, frozen=True, metaclass=_Declaring):
    """A record with fields that are made by `setting`."""

    heading: ClassVar[str] = ""  # of its settings in --help
    declared: ClassVar[Mapping[str, Setting]]  # those of the class itself, by field


class ConfigPart(Config, frozen=True):
    """Settings that belong together; raises SettingError for values that their declarations
    refuse.
    """

    def __post_init__(self) -> None:
        check_settings(self)


def check_settings(part: msgspec.Struct) -> None:
    """Raise SettingError for the first value that the declaration of a setting refuses."""
    for name, declared in declarations(type(part)).items():
        if declared.part is not None or declared.check is None:
            continue
        value = getattr(part, name)
        fix = declared.check(value)
        if fix:
            raise SettingError(fix, **{name: value})


def idle_settings(config: msgspec.Struct) -> dict[str, str]:
    """Settings that have no effect with the others as they are, and why."""
    reasons = {}
    for name, declared in declarations(type(config)).items():
        reason = "" if declared.idle is None else declared.idle(config)
        if reason:
            reasons[name] = reason
    return reasons


def value_text(value: object) -> str:
    """A setting's value as it is written on the command line, a whole number without decimals."""
    if isinstance(value, list | tuple):
        return ",".join(map(value_text, value)) or "(none)"
    if isinstance(value, float):
        return str(value).removesuffix(".0")
    return str(value)


def top_level_settings(kind: type[msgspec.Struct]) -> tuple[str, ...]:
    """The names of the settings that stand in no part."""
    return tuple(name for name, declared in declarations(kind).items() if declared.part is None)


def settings_of(config: msgspec.Struct) -> dict[str, object]:
    """All settings of a configuration by name."""
    values = {}
    for name, declared in declarations(type(config)).items():
        part = config if declared.part is None else getattr(config, declared.part)
        values[name] = getattr(part, name)
    return values


def in_parts(settings: Mapping[str, object], kind: type[msgspec.Struct]) -> dict[str, object]:
    """Settings by name as plain data of a configuration's type; those that it does not have are
    left out.
    """
    declared = declarations(kind)
    content: dict[str, Any] = {
        field.part: {} for field in declared.values() if field.part is not None
    }
    for name in settings.keys() & declared.keys():
        part = declared[name].part
        values = content if part is None else content[part]
        values[name] = settings[name]
    return content


def with_settings(config: _Config, **changed: object) -> _Config:
    """The configuration with some settings, by name, changed; raises SettingError for what cannot
    be.
    """
    declared = declarations(type(config))
    assert changed.keys() <= declared.keys(), f"{changed.keys() - declared.keys()}: no such setting"
    replaced: dict[str, Any] = in_parts(changed, type(config))
    for part in {field.part for field in declared.values() if field.part is not None}:
        replaced[part] = msgspec.structs.replace(getattr(config, part), **replaced[part])
    return msgspec.structs.replace(config, **replaced)


@lru_cache
def declarations(kind: type[msgspec.Struct]) -> dict[str, Setting]:
    """The settings of a type by name, those of its parts in the parts' place; a field that a
    subclass narrows keeps its own.
    """
    declared: dict[str, Setting] = {}
    for base in reversed(kind.__mro__):
        if not issubclass(base, msgspec.Struct):
            continue
        here: Mapping[str, Setting] = vars(base).get("declared", {})
        annotations: dict[str, Any] = get_annotations(base)
        for name, inner in annotations.items():
            # a part: its settings stand in its place
            if isinstance(inner, type) and issubclass(inner, ConfigPart):
                declared |= {
                    field: msgspec.structs.replace(inner_setting, part=name)
                    for field, inner_setting in declarations(inner).items()
                }
            elif name in kind.__struct_fields__:
                declaration = here.get(name) or declared.get(name, Setting(None))
                declared[name] = declaration.declared_in(kind, name, inner)
    return declared
