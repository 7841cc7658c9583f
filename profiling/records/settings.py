"""Settings in parts: what a part refuses, and all settings of a configuration by name. Imports no torch.

Whoever sets them (flags, a TOML file, an older run's manifest) knows no parts: names are unique within a configuration.
"""

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import TypeVar

import msgspec

from dpscope.profiling.records.stored import Stored

_Config = TypeVar("_Config", bound=msgspec.Struct)

SettingCheck = tuple[str, bool, str]
"""(setting, whether it holds, the fix)"""


class SettingError(ValueError):
    """A setting that cannot be, or several that cannot be together: which, their values and the fix."""

    def __init__(self, fix: str, joined: str = " with ", **settings: object) -> None:
        self.fix, self.joined, self.settings = fix, joined, settings
        super().__init__(self.told(lambda name: name))

    def told(self, called: Callable[[str], str]) -> str:
        """The mistake in one line; `called` says what a setting is called where it was given, such as ``--lr``."""
        given = self.joined.join(f"{called(name)} {shown(value)}" for name, value in self.settings.items())
        return f"{given}: {self.fix}"


class ConfigPart(Stored, frozen=True):
    """Settings that belong together; raises SettingError when made of values that cannot be."""

    def __post_init__(self) -> None:
        for name, holds, fix in self.checks():
            if not holds:
                raise SettingError(fix, **{name: getattr(self, name)})

    def checks(self) -> list[SettingCheck]:
        """What has to hold of each setting by itself."""
        return []


def shown(value: object) -> str:
    """A setting's value as it is written on the command line."""
    return ",".join(str(part) for part in value) or "(none)" if isinstance(value, list | tuple) else str(value)


def setting_names(kind: type[msgspec.Struct]) -> tuple[str, ...]:
    """The names of all settings of a configuration's type, those of its parts in the parts' place."""
    return tuple(_places(kind))


def own_settings(kind: type[msgspec.Struct]) -> tuple[str, ...]:
    """The names of the settings that stand in no part."""
    return tuple(name for name, part in _places(kind).items() if part is None)


def settings_of(config: msgspec.Struct) -> dict[str, object]:
    """All settings of a configuration by name."""
    return {
        name: getattr(config if part is None else getattr(config, part), name)
        for name, part in _places(type(config)).items()
    }


def in_parts(settings: Mapping[str, object], kind: type[msgspec.Struct]) -> dict[str, object]:
    """Settings by name as plain data of a configuration's type; those that it does not have are left out."""
    places = _places(kind)
    parts: dict[str, dict[str, object]] = {part: {} for part in places.values() if part is not None}
    own: dict[str, object] = {}
    for name in settings.keys() & places.keys():
        part = places[name]
        (own if part is None else parts[part])[name] = settings[name]
    return {**parts, **own}


def with_settings(config: _Config, **changed: object) -> _Config:
    """The configuration with some settings, by name, changed; raises SettingError for what cannot be."""
    places = _places(type(config))
    assert changed.keys() <= places.keys(), f"{changed.keys() - places.keys()}: no such setting"
    replaced: dict[str, object] = {}
    for part in {places[name] for name in changed}:
        values = {name: value for name, value in changed.items() if places[name] == part}
        replaced |= values if part is None else {part: msgspec.structs.replace(getattr(config, part), **values)}
    return msgspec.structs.replace(config, **replaced)


@lru_cache
def _places(kind: type[msgspec.Struct]) -> dict[str, str | None]:
    """The part that holds each setting, by the setting's name; None: the configuration itself."""
    places: dict[str, str | None] = {}
    for field in msgspec.structs.fields(kind):
        if isinstance(field.type, type) and issubclass(field.type, ConfigPart):
            places |= dict.fromkeys(field.type.__struct_fields__, field.name)
        else:
            places[field.name] = None
    return places
