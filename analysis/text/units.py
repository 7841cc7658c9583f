"""Numbers formatted as text: one unit per column, chosen by its median; NA for missing values."""

import math
import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

from dpscope.profiling.store.shown_text import one_line

Quantity = Literal[
    "text", "count", "time", "bytes", "rate", "ratio", "share", "percent", "points", "flops", "flop_rate", "bandwidth",
    "flag",
]  # fmt: skip
NA = "NA"

_MOST_DIGITS = 6


@dataclass(frozen=True)
class Unit:
    """The format of a column's values: divided by `divisor`, with `digits` decimals."""

    label: str
    divisor: float
    digits: int


_SCALES = {  # the label and size of each unit, smallest first
    "time": (("µs", 1.0), ("ms", 1e3), ("s", 1e6)),
    "bytes": (("B", 1.0), ("kB", 1e3), ("MB", 1e6), ("GB", 1e9)),
    "flops": (("", 1.0), ("M", 1e6), ("G", 1e9), ("T", 1e12)),
    "bandwidth": (("GB/s", 1.0),),
    "flop_rate": (("TFLOP/s", 1.0),),
    "rate": (("", 1.0),),  # the heading includes "per second"
}
_FIXED = {
    "share": Unit("%", 0.01, 1), "points": Unit("points", 1.0, 1), "percent": Unit("%", 1.0, 2), "ratio": Unit("x", 1.0, 2),
}  # fmt: skip


def choose_unit(quantity: Quantity, values: Iterable[float | None]) -> Unit:
    """The unit for a column."""
    if quantity in _FIXED:
        return _FIXED[quantity]
    known = sorted(
        abs(value) for value in values if value is not None and math.isfinite(value) and value != 0
    )
    if quantity not in _SCALES:
        # a mean may not be whole
        return Unit("", 1.0, 0 if all(float(value).is_integer() for value in known) else 1)
    middle = known[len(known) // 2] if known else 0.0
    scale = _SCALES[quantity]
    label, divisor = next((unit for unit in reversed(scale) if middle >= unit[1]), scale[0])
    return Unit(label, divisor, 0 if label == "B" else _digits(middle / divisor))  # bytes are whole


def _digits(middle: float) -> int:
    """The number of decimals for about three significant digits, at most six."""
    if middle == 0 or middle >= 100:
        return 0 if middle >= 1000 else 1
    return min(_MOST_DIGITS, 2 - math.floor(math.log10(middle)))


def show(value: object, unit: Unit) -> str:
    """A value in a column's unit."""
    if value is None:
        return NA
    if isinstance(value, bool):
        return "yes" if value else "NO"
    if isinstance(value, int | float):
        if not math.isfinite(value):
            return NA
        shown = f"{value / unit.divisor:.{unit.digits}f}"
        return shown if shown.strip("-0.") else shown.removeprefix("-")  # no -0.0
    return str(value)


def whole_numbers(values: Iterable[object]) -> list[object]:
    """A column with its numbers as integers where all of them are whole, else as floats; other
    values as they are.

    >>> whole_numbers([2.0, None, 3]), whole_numbers([2, 2.5, True])
    ([2, None, 3], [2.0, 2.5, True])
    """
    column = list(values)
    whole = all(float(value).is_integer() for value in column if isinstance(value, int | float))

    def converted(value: object) -> object:
        if isinstance(value, bool) or not isinstance(value, int | float):
            return value
        return int(value) if whole else float(value)

    return [converted(value) for value in column]


def plain(value: object) -> object:
    """A table's entry as plain Python: numpy scalars unwrapped, missing values of any kind as
    None.
    """
    # their values exist only once they are imported
    pandas, numpy = map(sys.modules.get, ("pandas", "numpy"))
    if value is None or (pandas and (value is pandas.NA or value is pandas.NaT)):
        return None
    if numpy and isinstance(value, numpy.generic):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value


def text(value: object) -> str:
    """A table's entry as text."""
    known = plain(value)
    return NA if known is None else str(known)


def show_time(microseconds: float | None) -> str:
    """A time with its unit, such as ``12.3 ms``."""
    unit = choose_unit("time", [microseconds])
    return NA if microseconds is None else f"{show(microseconds, unit)} {unit.label}"


def show_moment(stored: str) -> str:
    """A stored moment as people read it.

    >>> show_moment("2026-11-22T10:01:38+01:00")
    '22 Nov 2026, 09:01 UTC'
    """
    return datetime.fromisoformat(stored).astimezone(UTC).strftime("%d %b %Y, %H:%M UTC")


def show_changes(times_us: Sequence[float]) -> list[str]:
    """Times of one sentence with their signs, in the unit of the largest.

    >>> show_changes([5200.0, -173.1, 0.0])
    ['+5.20 ms', '-0.17 ms', '+0.00 ms']
    >>> show_changes([-173.1])
    ['-173.1 µs']
    """
    unit = choose_unit("time", [max(map(abs, times_us), default=0.0)])
    shown = [show(abs(time_us), unit) for time_us in times_us]
    signs = ["+" if time_us >= 0 else "-" for time_us in times_us]
    pairs = zip(signs, shown, strict=True)
    return [f"{sign}{size} {unit.label}" for sign, size in pairs]


def show_bytes(size: float | None) -> str:
    """A size with its unit, such as ``44.7 MB`` (1 MB = 1e6 B)."""
    unit = choose_unit("bytes", [size])
    return NA if size is None else f"{show(size, unit)} {unit.label}"


def show_apart(value: float, level: float = 1.0, digits: int = 2) -> str:
    """A number with so many digits, or up to two more, so that it is not rounded to the `level`
    that it is compared with.

    >>> show_apart(1.463), show_apart(0.9953), show_apart(1.0), show_apart(79.7, level=80, digits=0)
    ('1.46', '0.995', '1.00', '79.7')
    """
    for more in range(3):
        shown = f"{value:.{digits + more}f}"
        if float(shown) != level:
            return shown
    return f"{value:.{digits}f}"


def show_share(value: float | None) -> str:
    """Such as ``4.5%`` or ``45%``, and not ``100%`` of what is less; NA for None.

    >>> show_share(0.045), show_share(0.45), show_share(0.996), show_share(0.9999)
    ('4.5%', '45%', '99.6%', 'over 99.9%')
    """
    if value is None:
        return NA
    if 0.999 < value < 1:
        return "over 99.9%"
    near_an_end = value < 0.0995 or 0.995 <= value < 1
    return f"{value:.1%}" if near_an_end else f"{value:.0%}"


def show_chance(value: float | None) -> str:
    """As `show_share`, and not ``0.0%`` of what is possible.

    >>> show_chance(0.0002), show_chance(0.3)
    ('under 0.1%', '30%')
    """
    if value is not None and 0 <= value < 0.001:
        return "under 0.1%"
    return show_share(value)


def sentence(text: str) -> str:
    """The text with a full stop, and a capital unless it begins with a name such as ddp-d2-b4."""
    stripped = one_line(text).strip()
    if not stripped:
        return ""
    is_name = any(character in "-_#/.:0123456789" for character in stripped.split()[0].rstrip(".:"))
    opening = stripped if is_name else stripped[0].upper() + stripped[1:]
    return opening if opening.endswith((".", "!", "?")) else f"{opening}."


def as_ranges(ranks: Sequence[int], most: int = 8) -> str:
    """Ascending numbers as ranges of at least three.

    >>> as_ranges([3, 4, 5, 8, 9])
    '3 to 5, 8, 9'
    """
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    named = []
    for first, last in runs[:most]:
        joint = " to " if last - first > 1 else ", "
        named.append(joint.join(map(str, dict.fromkeys((first, last)))))
    left = sum(last - first + 1 for first, last in runs[most:])
    return ", ".join(named) + (f" and {left} more" if left else "")


def ranks_named(ranks: Sequence[int]) -> str:
    noun = "ranks"
    if len(ranks) == 1:
        noun = "rank"
    return f"{noun} {as_ranges(ranks)}"


def name_folded(name: str, width: int) -> str:
    """A cell's name over several lines, broken after hyphens and underscores.

    >>> name_folded("ddp-d2-b4-bucket-1mb", 12)
    'ddp-d2-b4-\\nbucket-1mb'
    """
    lines = [""]
    for part in re.split("(?<=[-_])", name):
        if lines[-1] and len(lines[-1]) + len(part) > width:
            lines.append("")
        lines[-1] += part
    return "\n".join(lines)
