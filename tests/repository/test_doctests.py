"""The examples in docstrings of functions give what they show."""

import doctest
import importlib

import pytest

from tests.helpers.paths import ROOT
from tests.helpers.torch_files import imports_torch

FOLDERS = ("profiling", "launch", "analysis")
FILES = sorted(
    path
    for folder in FOLDERS
    for path in (ROOT / folder).rglob("*.py")
    if ">>> " in path.read_text()
)
MODULES = [
    pytest.param(
        ".".join(("dpscope", *path.relative_to(ROOT).with_suffix("").parts)),
        marks=[pytest.mark.long] if imports_torch(path) else [],
    )
    for path in FILES
]


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings_give_what_they_show(name: str) -> None:
    result = doctest.testmod(importlib.import_module(name))
    assert result.attempted > 0
    assert result.failed == 0
