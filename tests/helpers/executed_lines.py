"""Which lines of dpscope a piece of work executes, and which lines only run where CUDA is.

A line counts as one that only runs with CUDA if it holds code that is guarded by the kind of device: it lies in a branch
that CUDA alone takes (`if device.type == "cuda"`, what follows `if kind == "cpu": return`), calls `torch.cuda`, or belongs to a
function that only such lines of the same file name. What decides (the `if` itself) runs everywhere and does not count.
"""

import ast
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from coverage import Coverage

from tests.helpers.paths import ROOT

FOLDERS = ("launch", "profiling")


@contextmanager
def executed_lines(into: dict[str, set[int]]) -> Iterator[None]:
    """Note every statement of dpscope that this and new threads execute, by its file's path in the repository."""
    coverage = _coverage()
    with coverage.collect():
        yield
    data = coverage.get_data()
    into |= {str(path).removeprefix(f"{ROOT}/"): set(data.lines(path) or ()) for path in data.measured_files()}


def cuda_lines() -> dict[str, set[int]]:
    """Of every file the statements that only run with CUDA, as above; files without any are left out."""
    found = {}
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            if lines := guarded_lines(path.read_text()) & set(_coverage().analysis2(str(path))[1]):
                found[str(path.relative_to(ROOT))] = lines
    return found


def _coverage() -> Coverage:
    return Coverage(data_file=None, config_file=False, include=[f"{ROOT / folder}/*" for folder in FOLDERS])


def guarded_lines(text: str) -> set[int]:
    """The lines of a source that only run with CUDA."""
    nodes = list(ast.walk(ast.parse(text)))
    functions = {node.name: node for node in nodes if isinstance(node, ast.FunctionDef)}
    deciding = {function.lineno for function in functions.values()}  # defined wherever the file is imported
    guarded: set[ast.AST] = set()

    def take(parts: Iterable[ast.AST]) -> None:
        guarded.update(inner for part in parts for inner in ast.walk(part))

    for node in nodes:
        blocks: list[Any] = [getattr(node, name, ()) for name in ("body", "orelse", "finalbody")]
        for block in (one for one in blocks if isinstance(one, list)):
            for index, one in enumerate(block):
                ends = isinstance(one, ast.If) and isinstance(one.body[-1], ast.Return | ast.Raise | ast.Continue)
                if ends and not one.orelse and _on_cuda(one.test) is False:
                    take(block[index + 1 :])
        if isinstance(node, ast.If | ast.IfExp):
            deciding |= set(range(node.test.lineno, (node.test.end_lineno or 0) + 1))
            side: Any = {True: node.body, False: node.orelse, None: []}[_on_cuda(node.test)]
            take(side if isinstance(side, list) else [side])
        elif isinstance(node, ast.ListComp | ast.GeneratorExp | ast.SetComp):
            if any(_on_cuda(one) for generator in node.generators for one in generator.ifs):
                take([node.elt])
        elif isinstance(node, ast.stmt) and _calls_cuda(node):
            take([node])
    grown = -1
    while grown != len(guarded):
        grown = len(guarded)
        for name, function in functions.items():
            own = set(ast.walk(function))
            uses = {node for node in nodes if isinstance(node, ast.Name) and node.id == name} - own
            if name.startswith("_") and uses and uses <= guarded:
                guarded |= own
    return {node.lineno for node in guarded if isinstance(node, ast.stmt | ast.expr)} - deciding


def _calls_cuda(statement: ast.stmt) -> bool:
    """Whether a simple statement calls a function of torch.cuda; questions whether it is there decide, and run everywhere."""
    if not isinstance(statement, ast.Expr | ast.Assign | ast.Return | ast.AugAssign | ast.With):
        return False
    chosen = [  # parts that may not run, which are looked at by themselves
        node
        for node in ast.walk(statement)
        if isinstance(node, ast.IfExp)
        or (isinstance(node, ast.ListComp | ast.GeneratorExp) and any(one.ifs for one in node.generators))
    ]
    heads = statement.items if isinstance(statement, ast.With) else [statement]
    inside = {inner for head in heads for inner in ast.walk(head)} - {one for part in chosen for one in ast.walk(part)}
    names = {ast.unparse(node.func) for node in inside if isinstance(node, ast.Call)}
    names -= {"torch.cuda.is_available", "torch.cuda.is_initialized"}
    return any(name.startswith("torch.cuda.") for name in names)


def _on_cuda(test: ast.expr) -> bool | None:
    """Whether a condition holds on CUDA alone (True), off it alone (False), or does not ask for it."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        inner = _on_cuda(test.operand)
        return None if inner is None else not inner
    if isinstance(test, ast.BoolOp):
        wanted = isinstance(test.op, ast.And)
        return wanted if wanted in map(_on_cuda, test.values) else None
    if isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.comparators[0], ast.Constant):
        kind, requested = test.comparators[0].value, ast.unparse(test.left) == "requested"  # --device auto is neither
        if not requested and kind in ("cuda", "cpu") and isinstance(test.ops[0], ast.Eq | ast.NotEq):
            return (kind == "cuda") == isinstance(test.ops[0], ast.Eq)
    called = ast.unparse(test.func) if isinstance(test, ast.Call) else ""
    named = test.id if isinstance(test, ast.Name) else ""
    cuda = named in ("cuda", "on_device", "on_gpus") or called in ("_cuda_usable", "torch.cuda.is_available")
    return True if cuda else None
