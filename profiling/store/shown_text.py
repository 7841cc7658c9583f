"""Text that was read from files, as it may be shown: it neither controls a terminal nor reorders
what a reader sees.
"""

import re
import sys

_CONTROLS = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # all but tab and new line: escape sequences begin with 1b or 9b
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # the direction of writing
    "\u2028\u2029]"  # line and paragraph separators
)
REPLACEMENT = "\ufffd"


def cleaned(text: str) -> str:
    """The text with REPLACEMENT for each character that may control a terminal or the direction of
    writing.

    >>> cleaned("torch \\x1b]0;title\\x07")
    'torch \ufffd]0;title\ufffd'
    """
    return _CONTROLS.sub(REPLACEMENT, text)


def one_line(text: str) -> str:
    """`cleaned`, and without new lines and tabs."""
    return cleaned(text).replace("\n", " ").replace("\t", " ")


def complain(text: str) -> None:
    """Write one line of dpscope's to standard error."""
    sys.stderr.write(f"dpscope: {one_line(text)}\n")


def write_out(text: str) -> None:
    """Write to standard output."""
    sys.stdout.write(cleaned(text))
