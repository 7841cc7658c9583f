"""One name for one thing: a public name is defined in one file alone."""

import ast
from collections import Counter

from tests.helpers.paths import ROOT

SEVERAL = {
    "main": "what a program that is started by its file is entered by",
    "COLUMNS": "the columns of the table that its own module makes",
    "compare": "a command and what it calls bear the command's name",
    "merge": "likewise",
    "train": "likewise",
    "serve": "likewise",
    "Amp": "an option of the command line is named like the setting it gives",
    "CommHook": "likewise",
    "Devices": "likewise",
    "LearningRateScaling": "likewise",
    "Scaling": "likewise",
    "Strategy": "likewise",
}


def defined(tree: ast.Module) -> set[str]:
    """The public names that a module defines itself."""
    names: set[str] = set()
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        )
        names |= {target.id for target in targets if isinstance(target, ast.Name)}
    return {name for name in names if not name.startswith("_")}


def test_a_public_name_is_defined_once() -> None:
    paths = [path for top in ("profiling", "launch", "analysis") for path in (ROOT / top).rglob("*.py")]
    counts = Counter(name for path in paths for name in defined(ast.parse(path.read_text())))
    assert len(counts) > 1000
    twice = {name for name, count in counts.items() if count > 1}
    assert twice - set(SEVERAL) == set(), "name them for what they are, or say in SEVERAL why not"
    assert set(SEVERAL) - twice == set(), "defined once by now: take them off the lists"
