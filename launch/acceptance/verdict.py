"""What a check of the acceptance says: a line each, and the file of all of them. Imports no torch."""

from typing import Literal

from dpscope.profiling.records.stored import Stored

Status = Literal["PASS", "FAIL", "SKIP"]
NO_VALUE = "-"  # no value, no limit


class CheckVerdict(Stored, frozen=True):
    """One thing that was looked at: its value and the limit it is held against, both with their unit."""

    status: Status
    name: str
    value: str = NO_VALUE
    limit: str = NO_VALUE
    reason: str = ""

    @property
    def line(self) -> str:
        """``PASS d.events_against_wall 0.31% 2%``; why it failed or was left out stands in brackets."""
        reason = f" ({self.reason})" if self.reason else ""
        return f"{self.status} {self.name} {self.value} {self.limit}{reason}"


class Acceptance(Stored, frozen=True):
    """`acceptance.json`: written anew after every check."""

    dpscope_version: str
    created_at: str  # ISO 8601, UTC
    gpus: int
    part: int | None
    duration_s: float
    complete: bool  # False while checks are left
    verdicts: tuple[CheckVerdict, ...]

    @property
    def failed(self) -> bool:
        return any(one.status == "FAIL" for one in self.verdicts)


def at_most(name: str, value: float | None, limit: float, unit: str, reason: str = "") -> CheckVerdict:
    """Whether a number is there and no larger than its limit; `unit` is % for shares, which are given as fractions."""
    told, allowed = (_shown(number, unit) for number in (value, limit))
    if value is None:
        return CheckVerdict("FAIL", name, NO_VALUE, allowed, reason or "no value was measured")
    good = value <= limit
    return CheckVerdict("PASS" if good else "FAIL", name, told, allowed, "" if good else reason)


def _shown(number: float | None, unit: str) -> str:
    if number is None:
        return NO_VALUE
    return f"{100 * number:.3g}%" if unit == "%" else f"{number:.4g}{unit}"


def equals(name: str, value: object, wanted: object, reason: str = "") -> CheckVerdict:
    """Whether something is what it should be; blanks in it are no separators of the line."""
    good = value == wanted
    shown = [str(one).replace(" ", "_") or NO_VALUE for one in (value, wanted)]
    return CheckVerdict("PASS" if good else "FAIL", name, shown[0], shown[1], "" if good else reason)


def none_of(name: str, found: list[str], reason: str = "") -> CheckVerdict:
    """Whether a list is empty; what is in it is the value."""
    value = ",".join(dict.fromkeys(found)).replace(" ", "_")
    return CheckVerdict("FAIL" if found else "PASS", name, value or "none", "none", reason if found else "")


def skipped(name: str, reason: str) -> CheckVerdict:
    """Not looked at, and why."""
    return CheckVerdict("SKIP", name, reason=reason)
