"""How much of one trace file is read: a small compressed file can expand without end."""

import sys
from dataclasses import dataclass


@dataclass(frozen=True)
class ReadLimits:
    """Of a file with more bytes the rest is not read; a file with more events is refused.

    The default number of events is that of about 2.5 GB of text as Kineto writes it.
    """

    max_bytes: int = 16 << 30  # uncompressed
    max_events: int = 10_000_000


DEFAULT_LIMITS = ReadLimits()
RUN_LIMITS = ReadLimits(max_events=sys.maxsize)
"""Of a run's own traces, which are always read whole."""
