"""How much each file and function decides, and the stored table of those that exceed a cap.

`python -m tests.repository.weights` writes the table again where values fell. It never raises one:
an entry is new only where another goes, as when code moves. A line is a file and its syntax nodes a
line, a function and its decisions, or a total.
"""

import ast
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.helpers.paths import ROOT
from tests.helpers.sources import SOURCES, syntax_nodes, syntax_tree

TABLE = Path(__file__).with_name("weights.txt")
COMMAND = ".venv/bin/python -m tests.repository.weights"
NODES_A_LINE = 4.5  # at most, of a file
DECISIONS = 12  # at most, of a function
SLACK = 0.1  # by which a file's value may have fallen before it is stored again
FOLDERS = "folders with code"

_DECIDING = (
    ast.If, ast.For, ast.While, ast.IfExp, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp, ast.BoolOp,
    ast.ExceptHandler, ast.match_case,
)  # fmt: skip

Weights = dict[str, float]


@dataclass(frozen=True)
class Heavy:
    """What exceeds a cap, by name: ``analysis/a.py``, and ``analysis/a.py Class.function``."""

    files: Weights
    functions: Weights
    folders: int


def present() -> Heavy:
    files: Weights = {}
    functions: Weights = {}
    for path in SOURCES:
        name = path.relative_to(ROOT).as_posix()
        files[name] = round(nodes_a_line(path), 2)
        functions |= {
            f"{name} {function}": count
            for function, count in decisions_of(syntax_tree(path)).items()
        }
    return Heavy(
        files={name: value for name, value in files.items() if value > NODES_A_LINE},
        functions={name: value for name, value in functions.items() if value > DECISIONS},
        folders=len({path.parent for path in SOURCES}),
    )


def nodes_a_line(path: Path) -> float:
    """Syntax nodes without contexts, over lines."""
    nodes = sum(not isinstance(node, ast.expr_context) for node in syntax_nodes(path))
    return nodes / max(path.read_text().count("\n"), 1)


def decisions_of(tree: ast.AST, inside: str = "") -> dict[str, int]:
    """The decisions of each function, those of functions in it included, by its name within the
    file.
    """
    counts: dict[str, int] = {}
    for node in ast.iter_child_nodes(tree):
        name = inside
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            name = f"{inside}.{node.name}".lstrip(".")
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            count = sum(isinstance(part, _DECIDING) for part in ast.walk(node))
            counts[name] = max(count, counts.get(name, 0))  # of overloads and branches the largest
        for inner, count in decisions_of(node, name).items():
            counts[inner] = max(count, counts.get(inner, 0))
    return counts


def stored() -> Heavy:
    lines = [line.rpartition(" ") for line in TABLE.read_text().splitlines()]
    values = {name: float(value) for name, _, value in lines}
    folders = int(values.pop(FOLDERS))
    return Heavy(
        files={name: value for name, value in values.items() if " " not in name},
        functions={name: value for name, value in values.items() if " " in name},
        folders=folders,
    )


def risen(before: Weights, now: Weights) -> dict[str, str]:
    """What exceeds its stored value, or a cap without being stored."""
    return {
        name: f"{before[name]:g} -> {value:g}" if name in before else f"{value:g}, not in the table"
        for name, value in now.items()
        if value > before.get(name, 0.0)
    }


def stale(before: Weights, now: Weights, slack: float) -> dict[str, str]:
    """What is stored and is within the cap, or lower than stored by more than `slack`."""
    return {
        name: f"{value:g} -> {now.get(name, 0.0):g}"
        for name, value in before.items()
        if value - now.get(name, 0.0) > slack
    }


def rewritten(before: Weights, now: Weights) -> Weights:
    """The values to be stored; raises ValueError where one rose, or where more are new than go."""
    higher = {name: change for name, change in risen(before, now).items() if name in before}
    if higher or len(now) > len(before):
        added = sorted(now.keys() - before.keys())
        raise ValueError(
            f"risen: {higher}; {len(before)} entries would be {len(now)}, new: {added}"
        )
    return now


def text_of(heavy: Heavy) -> str:
    entries = {**heavy.files, **heavy.functions, FOLDERS: heavy.folders}
    return "".join(f"{name} {value:g}\n" for name, value in sorted(entries.items()))


def main() -> None:
    now = present()
    if TABLE.exists():
        before = stored()
        rewritten(before.files, now.files)
        rewritten(before.functions, now.functions)
        rewritten({FOLDERS: before.folders}, {FOLDERS: now.folders})
    TABLE.write_text(text_of(now))


if __name__ == "__main__":
    try:
        main()
    except ValueError as error:
        sys.exit(f"the table was not written: {error}")
