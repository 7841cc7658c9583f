"""The options of the command line as scenarios: lists make a table, and what cannot be read is
refused in one line.
"""

import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any

from dpscope.analysis.costs.cost import Links
from dpscope.analysis.what_if.inputs import place_of
from dpscope.analysis.what_if.scenario import DEFAULT_BUCKET, Base, Scenario
from dpscope.analysis.what_if.step_profile import HOOK_FACTORS
from dpscope.profiling.machine.link_specifications import parse_link
from dpscope.profiling.records.links import REACHED_RATE, LinkRate
from dpscope.profiling.records.typed_text import MIB, choose_from, parse_size
from dpscope.profiling.store.errors import DpscopeError, read_option

_REACHED = "reached "
_MOST_SCENARIOS = 100_000

NamedScenario = tuple[dict[str, str], Scenario]
"""A scenario, and the words of the options that make it."""


def scenarios_of(options: Mapping[str, str | None]) -> list[NamedScenario]:
    """Every combination of the lists, each with the words that make it. Raises DpscopeError that
    names the option.

    The options are as they were typed, each a list such as ``8,16``; None was not given.
    """
    lists = []
    for name, read in _READERS.items():
        if (text := options.get(name)) is not None:
            words = dict.fromkeys(word.strip() for word in text.split(","))
            lists.append(
                [
                    (name, word, read_option("--" + name.replace("_", "-"), word, read))
                    for word in words
                ]
            )
    if (count := math.prod(map(len, lists))) > _MOST_SCENARIOS:
        raise DpscopeError(
            f"these lists make {count:,} scenarios; ask for {_MOST_SCENARIOS:,} or fewer"
        )
    found = []
    for chosen in product(*lists):
        values: dict[str, Any] = {_FIELDS.get(name, name): value for name, _, value in chosen}
        found.append(({name: word for name, word, _ in chosen}, Scenario(**values)))
    return found


def placed(base: Base, scenarios: Sequence[NamedScenario]) -> list[NamedScenario]:
    """With `--link` on the level that limits a ring over all devices: between nodes if several,
    else within the node.
    """
    return [(words, replace(one, links=_on_level(base, one))) for words, one in scenarios]


def _on_level(base: Base, scenario: Scenario) -> Links:
    several = place_of(base, scenario).nodes > 1
    return replace(scenario.links, intra=None) if several else replace(scenario.links, inter=None)


def _whole(least: int, example: str, word: str) -> int:
    if not re.fullmatch(r"[0-9]{1,7}", word) or int(word) < least:
        raise ValueError(f"{word}: give {example}")
    return int(word)


def _links(word: str) -> Links:
    """By specification, or with the word ``reached`` before it as measured; on both levels until
    the base is known: `placed`.
    """
    link = parse_link(word.removeprefix(_REACHED))
    if word.startswith(_REACHED):
        link = LinkRate(link.gb_per_s, link.name, REACHED_RATE)
    return Links(intra=link, inter=link)


def _one_of(known: Collection[str], word: str) -> str:
    if word not in known:
        raise ValueError(f"{word}: {choose_from(word, known)}")
    return word


_count = partial(_whole, 1, "whole numbers of 1 or more, such as 8,16")
_device_count = partial(_whole, 1, "device counts such as 8,16; --per-node is how many a node has")
_FIELDS = {
    "link": "links",
    "comm_hook": "hook",
}  # options whose field of a scenario has another name
_READERS: dict[str, Callable[[str], object]] = {
    "devices": _device_count,
    "per_node": _count,
    "link": _links,
    "bucket_mb": lambda word: word if word == DEFAULT_BUCKET else parse_size(word, MIB) / MIB,
    "comm_hook": partial(_one_of, HOOK_FACTORS),
    "batch_size": _count,
    "accumulate": _count,
    "overlap": lambda word: _one_of(("on", "off"), word) == "on",
    "on_time": partial(_whole, 0, "a rank, such as 1"),
}
SCENARIO_OPTIONS = tuple(_READERS)
