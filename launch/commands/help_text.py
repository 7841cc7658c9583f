"""The text of --help: headings, under which options stand in every command that has them, the words
for their values, and their defaults.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from dpscope.profiling.records.config import RunConfig
from dpscope.profiling.records.matrix import VARIANTS
from dpscope.profiling.records.settings import (
    AMOUNT,
    DATA,
    FILES,
    HEADINGS,
    NODES,
    TARGETS,
    declarations,
    settings_of,
    value_text,
)
from dpscope.profiling.records.training import TrainConfig

_HEADINGS = {  # of options that are no settings of a run or a training, by parameter
    parameter: heading
    for heading, parameters in {
        DATA: "dtype",
        AMOUNT: "detect detect_limit iterations collectives min_bytes max_bytes",
        TARGETS: "calibration flops target_accuracy",
        FILES: "config out report fresh dry_run output_format classic figures open_page verbose quiet wandb "
        "wandb_online",
        NODES: "nodes node_rank rendezvous wait_for_nodes",
    }.items()
    for parameter in parameters.split()
}
_DECLARED = {
    setting.option: setting
    for kind in (TrainConfig, RunConfig)
    for setting in declarations(kind).values()
    if setting.help
}
READING = "How traces are read"
"""The heading of options that their declaration places there, by `rich_help_panel`."""
OWN = "Options of this command"
"""What distinguishes a command from others, so it stands first."""
OTHER = "Options"
_RANGE = re.compile(r"\s*\[x>=\d+\]$")  # click's; the refusal of a value states it
_WORDS = {"timeout": "SECONDS", "collectives": "NAME,...", "dtype": "TYPE"}
_KINDS = {"int": "N", "float": "NUMBER", "Path": "PATH"}


def heading_of(parameter: str) -> str:
    """The heading of --help under which an option stands, in every command that has it."""
    return (
        _DECLARED[parameter].heading if parameter in _DECLARED else _HEADINGS.get(parameter, OTHER)
    )


def place_of(parameter: str) -> tuple[int, int]:
    """The place of an option among others: by heading; variants behind the other settings of
    theirs, then what is no setting.
    """
    declared = _DECLARED.get(parameter)
    rank = 2 if declared is None else int(bool(declared.moved) or declared.name in VARIANTS)
    return (*HEADINGS, OTHER).index(heading_of(parameter)), rank


def word_of(parameter: Any) -> str:
    """What --help writes for the value of an option or argument, such as PATH."""
    kind = parameter.type_descriptor
    if kind.is_choice:
        return "|".join(map(str, kind.choices))
    if parameter.param_type_name == "argument":
        return str(parameter.name).upper()
    if parameter.name in _WORDS:
        return _WORDS[parameter.name]
    name = parameter.name.rpartition("_")[2].upper()
    return _KINDS.get(str(parameter.bare_type()), str(name))


def records_by_heading(parameters: Sequence[Any], ctx: Any) -> dict[str, list[tuple[str, str]]]:
    """How parameters are written and their help, under each heading that has any."""
    groups: dict[str, list[tuple[str, str]]] = {
        heading: [] for heading in ("Arguments", OWN, *HEADINGS, READING, OTHER)
    }
    for parameter in parameters:
        name, text = parameter.get_help_record(ctx) or ("", "")
        text = _RANGE.sub("", text)
        if parameter.param_type_name == "argument":
            groups["Arguments"].append((parameter.metavar, text))
        elif name:
            heading = getattr(parameter, "rich_help_panel", None)
            heading = heading or heading_of(parameter.name)
            if heading == OTHER and parameter.name != "help":
                heading = OWN
            groups[heading].append((name, text))
    return {heading: records for heading, records in groups.items() if records}


def config_defaults(config: msgspec.Struct) -> dict[str, str]:
    """The settings of a configuration by option, as `default_texts` shows them."""
    options = [declaration.option for declaration in declarations(type(config)).values()]
    # --devices has two: counts and layouts
    values = zip(options, settings_of(config).values(), strict=True)
    return default_texts({option: value for option, value in values if value != ()})


def default_texts(values: Mapping[str, object]) -> dict[str, str]:
    """Values of parameters by option; a switch that is off is left out."""

    def text(value: object) -> str:
        if value is True:
            return "on"
        return value_text(value)

    texts = {}
    for name, value in values.items():
        is_off = value is None or value is False or value in ((), ("off",))
        if not is_off:
            texts[f"--{name.replace('_', '-')}"] = text(value)
    return texts


def by_device(values: Mapping[Any, Any]) -> str:
    """A default that depends on the devices."""
    return f"{value_text(values['cuda'])}; {value_text(values['cpu'])} on the CPU"
