"""Which lines of dpscope a piece of work executes, and which lines only run where CUDA is.

A line counts as one that only runs with CUDA if it holds code that is guarded by the kind of device: it lies in a branch
that CUDA alone takes (`if device.type == "cuda"`, what follows `if kind == "cpu": return`), calls `torch.cuda`, or belongs to a
function that only such lines of the same file name. What decides (the `if` itself) runs everywhere and does not count.
"""

import ast
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from tests.helpers.paths import ROOT

FOLDERS = ("launch", "profiling")
_CUDA_NAMES = frozenset({"cuda", "on_device", "on_gpus"})


@contextmanager
def executed_lines(into: dict[str, set[int]]) -> Iterator[None]:
    """Note every line of dpscope that this and new threads execute, by its file's path in the repository."""
    ours = {str(ROOT / folder) + "/": folder for folder in FOLDERS}
    known: dict[str, str | None] = {}

    def place(name: str) -> str | None:
        if name not in known:
            real = str(Path(name).resolve())
            known[name] = next((real[len(str(ROOT)) + 1 :] for start in ours if real.startswith(start)), None)
        return known[name]

    def of_call(frame: FrameType, event: str, _: Any) -> Any:
        file = place(frame.f_code.co_filename)
        if file is None:
            return None
        lines = into.setdefault(file, set())

        def of_line(inner: FrameType, what: str, argument: Any) -> Any:
            if what == "line":
                lines.add(inner.f_lineno)
            return of_line

        lines.add(frame.f_lineno)
        return of_line

    sys.settrace(of_call)
    threading.settrace(of_call)
    try:
        yield
    finally:
        sys.settrace(None)
        threading.settrace(None)


def cuda_lines() -> dict[str, set[int]]:
    """Of every file the lines that only run with CUDA, as above; files without any are left out."""
    found = {}
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            text = path.read_text()
            lines = guarded_lines(text) & _code_lines(compile(text, str(path), "exec"))
            if lines:
                found[str(path.relative_to(ROOT))] = lines
    return found


def guarded_lines(text: str) -> set[int]:
    """The lines of a source that only run with CUDA."""
    tree = ast.parse(text)
    guarded = _Guarded()
    guarded.visit(tree)
    functions = {node.name: node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    guarded.deciding |= {function.lineno for function in functions.values()}  # defined wherever the file is imported
    inside = guarded.nodes
    grown = True
    while grown:
        grown = False
        for name, function in functions.items():
            uses = [node for node in ast.walk(tree) if isinstance(node, ast.Name) and node.id == name]
            own = {id(node) for node in ast.walk(function)}
            calls = [node for node in uses if id(node) not in own]
            if name.startswith("_") and calls and all(id(node) in inside for node in calls) and not own <= inside:
                inside |= own
                grown = True
    return {line for node in ast.walk(tree) if id(node) in inside for line in _own_lines(node)} - guarded.deciding


def _own_lines(node: ast.AST) -> range:
    first = getattr(node, "lineno", None)
    return range(first, first + 1) if first is not None and isinstance(node, ast.stmt | ast.expr) else range(0)


class _Guarded(ast.NodeVisitor):
    """Collects the nodes of branches that CUDA alone takes, and the lines that decide."""

    def __init__(self) -> None:
        self.nodes: set[int] = set()
        self.deciding: set[int] = set()

    def _take(self, *parts: ast.AST) -> None:
        self.nodes |= {id(node) for part in parts for node in ast.walk(part)}

    def generic_visit(self, node: ast.AST) -> None:
        for block in (getattr(node, name, None) for name in ("body", "orelse", "finalbody")):
            if isinstance(block, list):
                self._block(block)
        if isinstance(node, ast.If | ast.IfExp):
            self.deciding |= set(range(node.test.lineno, (node.test.end_lineno or 0) + 1))
            side = _on_cuda(node.test)
            taken = {True: node.body, False: node.orelse, None: []}[side]
            self._take(*(taken if isinstance(taken, list) else [taken]))
        if isinstance(node, ast.ListComp | ast.GeneratorExp | ast.SetComp) and any(
            _on_cuda(one) for generator in node.generators for one in generator.ifs
        ):
            self._take(node.elt)
        if isinstance(node, ast.stmt) and not isinstance(node, ast.FunctionDef | ast.ClassDef) and _calls_cuda(node):
            self._take(node)
        super().generic_visit(node)

    def _block(self, block: list[Any]) -> None:
        for index, one in enumerate(block):
            ends = isinstance(one, ast.If) and isinstance(one.body[-1], ast.Return | ast.Raise | ast.Continue)
            if ends and not one.orelse and _on_cuda(one.test) is False:
                self._take(*block[index + 1 :])


def _calls_cuda(statement: ast.stmt) -> bool:
    """Whether a simple statement calls a function of torch.cuda; questions whether it is there decide, and run everywhere."""
    if not isinstance(statement, ast.Expr | ast.Assign | ast.Return | ast.AugAssign | ast.With):
        return False
    heads = statement.items if isinstance(statement, ast.With) else [statement]
    called = [node.func for head in heads for node in ast.walk(head) if isinstance(node, ast.Call)]
    names = {ast.unparse(function) for function in called if not _within_choice(statement, function)}
    asking = {"torch.cuda.is_available", "torch.cuda.is_initialized"}
    return any(name.startswith("torch.cuda.") and name not in asking for name in names)


def _within_choice(statement: ast.stmt, function: ast.expr) -> bool:
    """Whether a call lies in a part of the statement that may not run, which is looked at by itself."""
    chosen = [
        node
        for node in ast.walk(statement)
        if isinstance(node, ast.IfExp)
        or (isinstance(node, ast.ListComp | ast.GeneratorExp) and any(one.ifs for one in node.generators))
    ]
    return any(function in ast.walk(node) for node in chosen)


def _on_cuda(test: ast.expr) -> bool | None:
    """Whether a condition holds on CUDA alone (True), off it alone (False), or does not ask for it."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        inner = _on_cuda(test.operand)
        return None if inner is None else not inner
    if isinstance(test, ast.BoolOp):
        sides = [_on_cuda(value) for value in test.values]
        wanted = isinstance(test.op, ast.And)
        return wanted if wanted in sides else None
    if isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.comparators[0], ast.Constant):
        kind = test.comparators[0].value
        requested = ast.unparse(test.left) == "requested"  # --device auto is neither
        if not requested and kind in ("cuda", "cpu") and isinstance(test.ops[0], ast.Eq | ast.NotEq):
            return (kind == "cuda") == isinstance(test.ops[0], ast.Eq)
    if isinstance(test, ast.Name) and test.id in _CUDA_NAMES:
        return True
    return (
        True
        if isinstance(test, ast.Call) and ast.unparse(test.func) in ("_cuda_usable", "torch.cuda.is_available")
        else None
    )


def _code_lines(code: CodeType) -> set[int]:
    lines = {line for _, _, line in code.co_lines() if line}
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            lines |= _code_lines(inner)
    return lines
