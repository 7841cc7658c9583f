"""The options of the command line as scenarios: lists make a table, and what cannot be read is refused in one line."""

import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any, TypeVar

from dpscope.analysis.what_if.band import UNKNOWABLE
from dpscope.analysis.what_if.collective_costs import Links
from dpscope.analysis.what_if.inputs import place_of
from dpscope.analysis.what_if.scenario import DEFAULT_BUCKET, Base, Scenario
from dpscope.analysis.what_if.step_profile import HOOK_FACTORS
from dpscope.profiling.machine.link_specifications import parse_link
from dpscope.profiling.records.links import REACHED_RATE, LinkRate
from dpscope.profiling.records.typed_text import MIB, choose_from, parse_size
from dpscope.profiling.store.errors import DpscopeError, read_option

_MOST = 10_000_000
_REACHED = "reached "
_MOST_SCENARIOS = 100_000
_Value = TypeVar("_Value")

Options = Mapping[str, str | None]
"""The options as they were typed, each a list such as ``8,16``; None, or missing, was not given."""
NamedScenario = tuple[dict[str, str], Scenario]
"""A scenario, and the words of the options that make it."""


def scenarios_of(options: Options) -> list[NamedScenario]:
    """Every combination of the lists, each with the words that make it. Raises DpscopeError that names the option.

    `--link` is on both levels until the base is known: `placed`.
    """
    level = "inter" if options.get("inter") is not None else "intra" if options.get("intra") else None
    if options.get("link") is not None and level is not None:
        raise DpscopeError(
            f"--link and --{level} state the same link; give --link, or --inter and --intra for two levels"
        )
    lists = []
    for name, read in _READERS.items():
        if (text := options.get(name)) is not None:
            words = dict.fromkeys(word.strip() for word in text.split(","))
            lists.append([(name, word, read_option("--" + name.replace("_", "-"), word, read)) for word in words])
    if (count := math.prod(map(len, lists))) > _MOST_SCENARIOS:
        raise DpscopeError(f"these lists make {count:,} scenarios; ask for {_MOST_SCENARIOS:,} or fewer")
    found = []
    for chosen in product(*lists):
        values: dict[str, Any] = {name: value for name, _, value in chosen}
        link = values.pop("link", None)
        links = Links(intra=values.pop("intra", link), inter=values.pop("inter", link))
        if "comm_hook" in values:
            values["hook"] = values.pop("comm_hook")
        found.append(({name: word for name, word, _ in chosen}, Scenario(links=links, **values)))
    return found


def placed(base: Base, scenarios: Sequence[NamedScenario]) -> list[NamedScenario]:
    """With `--link` on the level that limits a ring over all devices: between nodes if there are several, else within the node.

    Raises DpscopeError for a link that none of the scenarios has, and for devices of which nothing is known.
    """
    stated, places = scenarios[0][0], [place_of(base, one) for _, one in scenarios]
    most = max(one.devices for one in places)
    if most > UNKNOWABLE * base.largest:
        raise DpscopeError(
            f"--devices {most}: nothing is known beyond {UNKNOWABLE} times the largest measured count ({base.largest}); give "
            f"{UNKNOWABLE * base.largest} or fewer"
        )
    if "inter" in stated and all(one.nodes == 1 for one in places):
        raise DpscopeError("--inter changes nothing: all of it is on one node; add --per-node, and --devices beyond it")
    if "intra" in stated and all(one.per_node == 1 for one in places):
        raise DpscopeError("--intra changes nothing: every node has one device; give --inter, or --per-node")
    if "link" not in stated:
        return list(scenarios)
    unused = ["intra" if one.nodes > 1 else "inter" for one in places]
    return [
        (words, replace(one, links=replace(one.links, **{level: None})))
        for (words, one), level in zip(scenarios, unused, strict=True)
    ]


def _whole(word: str) -> int:
    if not re.fullmatch(r"[0-9]{1,18}", word) or not 1 <= int(word) <= _MOST:
        raise ValueError(f"{word!r}: give whole numbers of 1 or more, such as 8,16")
    return int(word)


def _rank(word: str) -> int:
    if not re.fullmatch(r"[0-9]{1,9}", word):
        raise ValueError(f"{word!r}: give a rank, such as 7")
    return int(word)


def _link(word: str) -> LinkRate:
    """By specification, or with the word ``reached`` before it as measured."""
    link = parse_link(word.removeprefix(_REACHED))
    return LinkRate(link.gb_per_s, link.name, REACHED_RATE) if word.startswith(_REACHED) else link


def _positive(word: str, example: str) -> float:
    try:
        value = float(word)
    except ValueError:
        value = math.nan
    if not 0 < value < _MOST:
        raise ValueError(f"{word!r}: give a number above 0, such as {example}")
    return value


def _share(word: str) -> float:
    """A percentage, with its sign: 3 may be 3% or 300%."""
    if not word.endswith("%"):
        raise ValueError(
            f"{word!r} has no unit: write {word}% (of the step, the standard deviation of a rank's lateness)"
        )
    return _positive(word[:-1], "3%") / 100


def _one_of(known: Collection[str], word: str) -> str:
    if word not in known:
        raise ValueError(f"{word!r}: {choose_from(word, known)}")
    return word


_READERS: dict[str, Callable[[str], object]] = {
    "devices": _whole,
    "per_node": _whole,
    "link": _link,
    "inter": _link,
    "intra": _link,
    "bucket_mb": lambda word: word if word == DEFAULT_BUCKET else parse_size(word, MIB) / MIB,
    "comm_hook": partial(_one_of, HOOK_FACTORS),
    "batch_size": _whole,
    "accumulate": _whole,
    "overlap": lambda word: _one_of(("on", "off"), word) == "on",
    "faster": partial(_positive, example="1.7"),
    "on_time": _rank,
    "jitter": _share,
}
SCENARIO_OPTIONS = tuple(_READERS)
