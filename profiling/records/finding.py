"""Findings: observations as data, each with its meaning and a next step."""

from collections.abc import Iterable, Sequence
from enum import Enum
from typing import Literal, TypeVar

from dpscope.profiling.records.stored import Stored

Severity = Literal["info", "warning", "error"]
Trait = Literal[
    "events_left_out",  # counts events of a file that are in no table
    "in_tables",  # repeats in words what a run's tables show
    "of_many_cells",  # typical of many cells: reported once, with all of them in one message
]


class Finding(Stored, frozen=True, kw_only=True):
    """A warning or conclusion. Made only by `FindingCode.finding`, or read from a run folder.

    `code` is text, not a `FindingCode`: a folder of another version may hold codes that this
    version does not know.
    """

    severity: Severity
    code: str
    message: str
    next_step: str


_SEVERITIES: dict[str, Severity | None] = {
    "info": "info",
    "warning": "warning",
    "error": "error",
    "varying": None,
}


class FindingCode(Enum):
    """Base of the enums that register every finding; docs/findings.md lists them all.

    A member is declared by its text: ``severity (traits): meaning in a sentence or two. -> next
    step``. The severity of a `varying` one depends on the observation.
    """

    def __init__(self, declared: str) -> None:
        head, _, text = " ".join(declared.split()).partition(": ")
        severity, _, traits = head.removesuffix(")").partition(" (")
        self.severity = _SEVERITIES[severity]
        self.traits = tuple(traits.split(", ")) if traits else ()
        self.meaning, _, self.next_step = text.partition(" -> ")

    @property
    def code(self) -> str:
        """As it is stored."""
        return self.name.lower()

    @classmethod
    def with_trait(cls, trait: Trait) -> frozenset[str]:
        """The codes of this enum that have a trait."""
        return frozenset(one.code for one in cls if trait in one.traits)

    def finding(
        self, message: str, next_step: str | None = None, severity: Severity | None = None
    ) -> Finding:
        """A finding of this code; `severity` is given if and only if the code has none."""
        assert (severity is None) != (self.severity is None), (
            f"{self.code}: the severity is fixed, or missing"
        )
        known = self.severity or severity
        assert known is not None
        return Finding(
            severity=known, code=self.code, message=message, next_step=next_step or self.next_step
        )


def counted(count: int, noun: str) -> str:
    """A number with its noun for messages, such as ``1 repeat`` or ``2 repeats``.

    >>> counted(1, "process"), counted(1200, "process"), counted(2, "batch"), counted(2, "copy"), counted(2, "epoch")
    ('1 process', '1,200 processes', '2 batches', '2 copies', '2 epochs')
    """
    return f"{count:,} {noun if count == 1 else plural(noun)}"


def listed(values: Sequence[object], most: int = 8) -> str:
    """The first values, and how many more there are, unless that is one, which is listed.

    >>> listed("abc", 2), listed("abcd", 2)
    ('a, b, c', 'a, b and 2 more')
    """
    left = len(values) - most
    return ", ".join(map(str, values[: most + (left == 1)])) + (
        f" and {left} more" if left > 1 else ""
    )


_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


def grouped(pairs: Iterable[tuple[_Key, _Value]]) -> dict[_Key, list[_Value]]:
    """The values of each key, such as the cells that share a reason; both in the order of their
    first pair.
    """
    groups: dict[_Key, list[_Value]] = {}
    for key, value in pairs:
        groups.setdefault(key, []).append(value)
    return groups


def plural(noun: str) -> str:
    """The regular English plural of a noun; of several words, the last one's."""
    # its ch sounds like k
    if noun.endswith(("s", "x", "z", "ch", "sh")) and not noun.endswith("epoch"):
        return f"{noun}es"
    if noun.endswith("y") and noun[-2:-1] not in tuple("aeiou"):
        return f"{noun[:-1]}ies"
    return f"{noun}s"
