"""Which test files import torch as they are collected, found from import statements alone."""

import re
from functools import cache
from pathlib import Path

from tests.helpers.paths import ROOT

IMPORTS = re.compile(
    r"^(?:from ([\w.]+) import (\(.*?\)|.*?$)|import ([\w., ]+))", re.MULTILINE | re.DOTALL
)
HEAVY = ("torch", "torchvision")


@cache
def imports_torch(path: Path) -> bool:
    """Whether importing the file imports torch; what is imported within functions does not
    count.
    """
    seen, waiting = {path}, [path]
    while waiting:
        names = imported(waiting.pop())
        if any(name.partition(".")[0] in HEAVY for name in names):
            return True
        found = {file for name in names if (file := file_of(name)) is not None} - seen
        seen |= found
        waiting += found
    return False


@cache
def imported(path: Path) -> frozenset[str]:
    """Modules named by the import statements at a file's left margin, and what is taken from each
    as if it were one.
    """
    names = set()
    for module, taken, plain in IMPORTS.findall(path.read_text()):
        names |= {module} if module else {one.split()[0] for one in plain.split(",")}
        names |= {f"{module}.{one}" for one in re.findall(r"\w+", taken)} if module else set()
    return frozenset(names)


@cache
def file_of(module: str) -> Path | None:
    """The file of a module of this repository."""
    place = ROOT / module.removeprefix("dpscope.").replace(".", "/")
    return next(
        (one for one in (place.with_suffix(".py"), place / "__init__.py") if one.is_file()), None
    )
