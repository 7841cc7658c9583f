"""Values that may be missing, in tests that know them to be there."""

from typing import TypeVar

_Value = TypeVar("_Value")


def known(value: _Value | None) -> _Value:
    """The value; fails where it is missing."""
    assert value is not None
    return value
