"""Parses text that users type: sizes with a unit, and words from a known set. Imports no torch."""

import difflib
import math
import re
from collections.abc import Iterable

MIB = 1 << 20
_SIZE = re.compile(
    r"(?P<number>(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?)\s*(?:(?P<scale>[KMGT])(?P<binary>i?)(?P<byte>B?)|B|bytes?)?",
    re.IGNORECASE,
)


def parse_size(text: str, unit_bytes: int = 1) -> float:
    """The bytes of a text such as ``4096``, ``4 MB``, ``4MiB`` or ``4M``.

    `unit_bytes` is the unit of a bare number. MB is 1e6 bytes, as in reports; MiB, and M as in
    nccl-tests, are 2**20. Raises ValueError with the valid forms for a text that is not a size or
    not above 0.
    """
    parts = _SIZE.fullmatch(text.strip())
    bare = "25 (MiB)" if unit_bytes == MIB else "4096"
    advice = f"give a size above 0, such as {bare}, 4MB (1e6 bytes each) or 4MiB (2^20 bytes each)"
    if parts is None:
        raise ValueError(f"{text}: {advice}")
    factor: float = unit_bytes
    if parts["scale"]:
        base = 1000 if parts["byte"] and not parts["binary"] else 1024
        factor = base ** {"k": 1, "m": 2, "g": 3, "t": 4}[parts["scale"].lower()]
    elif parts[0][-1].isalpha():
        factor = 1  # with "B" or "bytes"
    size = float(parts["number"]) * factor
    if not 0 < size < math.inf:
        raise ValueError(f"{text}: {advice}")
    return size


def parse_share(text: str) -> float:
    """``80%`` or ``0.8`` as 0.8; raises ValueError with the valid forms. A number above 1 needs the
    sign: 5 may be 5% or 500%.
    """
    value = _share(text, math.inf)
    if value < 0:
        raise ValueError(f"{text}: give a share of 0% or more, such as 5%")
    return value


def _share(text: str, most: float) -> float:
    """A share of any sign; a number that would be one of at most `most` with the sign % needs it."""
    number = text.removesuffix("%")
    try:
        value = float(number) / (1 if number == text else 100)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise ValueError(f"{text} is not a share: write it as 5% or 0.05")
    if number == text and 1 < value <= 100 * most:
        raise ValueError(f"{text} is not a share: write it as {text}%")
    return value


def parse_part(text: str) -> float:
    """A share above 0 and at most 100%; raises ValueError."""
    value = _share(text, 1.0)
    if not 0 < value <= 1:
        raise ValueError(f"{text}: give a share above 0% and at most 100%, such as 80%")
    return value


def nearest(word: str, candidates: Iterable[str], most: int = 1, cutoff: float = 0.6) -> list[str]:
    """The known words that a mistyped word resembles most, regardless of case."""
    by_lower = {name.lower(): name for name in candidates}
    return [
        by_lower[name]
        for name in difflib.get_close_matches(word.lower(), by_lower, n=most, cutoff=cutoff)
    ]


def choose_from(word: object, choices: Iterable[str], verb: str = "choose from") -> str:
    """Advice for an unknown word.

    >>> choose_from("ddb", ("dp", "ddp"))
    'did you mean ddp? Choose from dp, ddp'
    >>> choose_from("x", ("dp", "ddp"))
    'choose from dp, ddp'
    >>> choose_from("dp-host", ("dp", "ddp"))  # as cells on the CPU are named
    'did you mean dp? Choose from dp, ddp'
    """
    words = list(choices)
    advice = f"{verb} {', '.join(words)}"
    meant = nearest(str(word), words) or [
        choice for choice in words if str(word).startswith(f"{choice}-")
    ]
    if not meant:
        return advice
    return f"did you mean {meant[0]}? {advice[0].upper()}{advice[1:]}"


def words(text: str) -> tuple[str, ...]:
    """The words of ``none,fp16``."""
    return tuple(part.strip() for part in text.split(","))


def switches(text: str) -> tuple[str, ...]:
    """The values of ``on,off``; TOML and plain flags write ``true`` and ``false``."""
    return tuple({"true": "on", "false": "off"}.get(part.lower(), part) for part in words(text))


def whole_numbers(text: str) -> tuple[int, ...]:
    """The numbers of ``6,8``, in their order; raises ValueError."""
    return tuple(map(_whole_number, words(text)))


def _whole_number(text: str) -> int:
    if not re.fullmatch(r"-?\d{1,18}", text):
        raise ValueError(f"{text or 'nothing'} is not a whole number")
    return int(text)
