"""The repr of results: a line per field, none of them long, however much a result holds."""

from collections.abc import Collection, Mapping
from dataclasses import fields
from typing import Any

MOST_LINES = 20
_MOST_LETTERS = 100  # of a field
_MOST_NAMED = 4
_ADDRESS = " object at 0x"


def short_repr(result: Any) -> str:
    """The `__repr__` of a dataclass: its fields, each shortened to a line, in at most MOST_LINES
    lines.
    """
    lines = [
        f"    {field.name}={_shortened(getattr(result, field.name))},"
        for field in fields(result)
        if field.repr
    ]
    most = MOST_LINES - 2
    if len(lines) > most:
        lines = [*lines[: most - 1], f"    ... and {len(lines) - most + 1} more fields"]
    return "\n".join([f"{type(result).__name__}(", *lines, ")"])


def _shortened(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, Mapping) and value:
        named = ", ".join(map(str, list(value)[:_MOST_NAMED]))
        more = ", ..." if len(value) > _MOST_NAMED else ""
        return _cut(f"<{len(value)} by name: {named}{more}>")
    kind = type(value).__name__
    text = repr(value)
    if isinstance(value, Collection) and not isinstance(value, str):
        is_long = len(value) > _MOST_NAMED or "\n" in text
        if is_long:
            return f"<{kind} of {len(value)}>"
    # of several lines, or of a part that has no repr of its own
    if "\n" in text or _ADDRESS in text:
        return f"<{kind}>"
    return _cut(text)


def _cut(text: str) -> str:
    return text if len(text) <= _MOST_LETTERS else f"{text[: _MOST_LETTERS - 3]}..."
