"""Values that may be missing, in tests that know them to be there, and the codes of findings."""

from collections.abc import Iterable
from typing import Protocol, TypeVar

from dpscope.profiling.records.finding import Finding

_Value = TypeVar("_Value")


def known(value: _Value | None) -> _Value:
    """The value; fails where it is missing."""
    assert value is not None
    return value


class WithFindings(Protocol):
    @property
    def findings(self) -> Iterable[Finding]: ...


def codes(reported: WithFindings) -> set[str]:
    """Of what was found."""
    return {finding.code for finding in reported.findings}
