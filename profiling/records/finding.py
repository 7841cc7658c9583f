"""Findings: observations as data, each with its meaning and a next step."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Literal, TypeVar

import msgspec

from dpscope.profiling.records.stored import Stored

Severity = Literal["info", "warning", "error"]


class Finding(Stored, frozen=True, kw_only=True, omit_defaults=True):
    """A warning or conclusion. Made only by `FindingCode.finding`, or read from a run folder.

    `code` is text, not a `FindingCode`: a folder of another version may hold codes that this
    version does not know. `about` is what the message begins with, such as a cell.
    """

    severity: Severity
    code: str
    message: str
    next_step: str
    about: str = ""
    script_step: str = ""  # the next step in a script, until `advised` decides

    @property
    def observation(self) -> str:
        """The message without what it is about."""
        return self.message.removeprefix(f"{self.about}: ") if self.about else self.message

    def advised(self, in_a_script: bool) -> "Finding":
        """With the next step for a script, to which dpscope's options do not apply, or for a
        run.
        """
        step = self.script_step if in_a_script and self.script_step else self.next_step
        return msgspec.structs.replace(self, next_step=step, script_step="")


@dataclass(frozen=True)
class Code:
    """What is declared of a finding, once; docs/findings.md shows it.

    `action` is the next step unless a finding brings its own; `script_action` replaces it where a
    script was measured or traced and dpscope's options do not apply, `export_action` where nsys
    recorded what torch.profiler does not. `other_severity` is what some observations have.

    An observation is one fact with its numbers, on one line. A finding brings its own action only
    where it can name the file, the rank or the option. A code with the action of another code is
    that one with another observation; a code that nobody can act on is none.
    """

    severity: Severity
    meaning: str
    action: str
    script_action: str = ""
    export_action: str = ""
    other_severity: Severity | None = None
    of_many_cells: bool = False  # typical of many cells: reported once, with all in one message


class FindingCode(Enum):
    """Base of the enums that register every finding; the value of a member is its `Code`."""

    _value_: Code

    @property
    def code(self) -> str:
        """As it is stored."""
        return self.name.lower()

    def finding(
        self,
        observation: str,
        action: str = "",
        *,
        script_action: str = "",
        about: str = "",
        severity: Severity | None = None,
    ) -> Finding:
        """A finding of this code; what is not given here is as declared."""
        declared = self.value
        assert severity in (None, declared.severity, declared.other_severity), self.code
        return Finding(
            severity=severity or declared.severity,
            code=self.code,
            message=f"{about}: {observation}" if about else observation,
            next_step=action or declared.action,
            script_step=script_action or ("" if action else declared.script_action),
            about=about,
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
