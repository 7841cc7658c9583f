"""What dpscope says beside its numbers, as data: what was seen, what it means, what to do."""

from enum import StrEnum
from typing import Literal

from dpscope.profiling.records.stored import Stored

Severity = Literal["info", "warning", "error"]


class Finding(Stored, frozen=True, kw_only=True):
    """A warning or conclusion as data. Made by `FindingCode.finding` alone; read from run folders as it was stored.

    `code` is text, not a `FindingCode`: a folder of another version may hold codes that this version does not know.
    """

    severity: Severity
    code: str
    message: str
    next_step: str


class FindingCode(StrEnum):
    """Base of the enums that register every finding; docs/findings.md lists them all.

    A member is its code, as it is stored, and knows its severity (None: it depends on what was seen), its meaning in one
    sentence, and its next step unless a finding has a better one.
    """

    severity: Severity | None
    meaning: str
    next_step: str

    def __new__(cls, code: str, severity: Severity | None, meaning: str, next_step: str) -> "FindingCode":
        member = str.__new__(cls, code)
        member._value_ = code
        member.severity, member.meaning, member.next_step = severity, meaning, next_step
        return member

    def finding(self, message: str, next_step: str | None = None, severity: Severity | None = None) -> Finding:
        """A finding of this code; give `severity` where the code leaves it open, and only there."""
        assert (severity is None) != (self.severity is None), f"{self}: the severity is fixed, or missing"
        known = self.severity or severity
        assert known is not None
        return Finding(severity=known, code=self.value, message=message, next_step=next_step or self.next_step)
