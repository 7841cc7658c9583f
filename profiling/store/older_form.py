"""The form in which earlier versions stored a configuration. Imports no torch."""

import msgspec

from dpscope.profiling.records.config import RunConfig
from dpscope.profiling.records.settings import in_parts, setting_names


def with_config_in_parts(content: object, kind: object) -> object:
    """Plain data of a stored file, its `config` in the parts that a `kind` has today; of another form, as it is.

    All settings of a run stood side by side, those that a training shares with it under `run`. What no configuration ever had
    stays beside the parts, to be refused.
    """
    if not (isinstance(kind, type) and issubclass(kind, msgspec.Struct)) or not isinstance(content, dict):
        return content
    fields = {field.name: field.type for field in msgspec.structs.fields(kind)}
    config, config_kind = content.get("config"), fields.get("config")
    if not isinstance(config, dict) or not (isinstance(config_kind, type) and issubclass(config_kind, msgspec.Struct)):
        return content
    if in_parts({}, config_kind).keys() & config.keys():
        return content
    shared = config.get("run", {})
    if not isinstance(shared, dict):
        return content
    settings = {**shared, **{name: value for name, value in config.items() if name != "run"}}
    known = {*setting_names(RunConfig), *setting_names(config_kind)}
    unknown = {name: value for name, value in settings.items() if name not in known}
    return {**content, "config": {**in_parts(settings, config_kind), **unknown}}
