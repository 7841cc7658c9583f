"""Whether torch.compile did in a compiled cell what its name says: compiled something, and nothing more once warm-up was over."""

from collections.abc import Sequence

from dpscope.profiling.records.finding import Finding, counted
from dpscope.profiling.records.run import Cell, RankResult
from dpscope.profiling.records.run_codes import RunCode
from dpscope.profiling.records.wrapped import Compilation


def compilation_findings(cell: Cell, ranks: Sequence[RankResult]) -> list[Finding]:
    """`not_compiled` and `compiled_late`, each said of the rank that shows it most."""
    told = [(rank.rank, rank.compilation) for rank in ranks if rank.compilation is not None]
    if not told:
        return []
    findings = []
    rank, fewest = min(told, key=lambda one: one[1].graphs)
    if fewest.graphs == 0:
        findings.append(
            RunCode.NOT_COMPILED.finding(
                f"{cell.name}: rank {rank} captured no graph{_breaks(fewest)}, so the model ran as without --compile."
            )
        )
    rank, latest = max(told, key=lambda one: one[1].late_graphs)
    if latest.late_graphs:
        findings.append(
            RunCode.COMPILED_LATE.finding(
                f"{cell.name}: rank {rank} compiled {latest.late_graphs} of its {counted(latest.graphs, 'graph')} after "
                "warm-up: timed or traced steps hold the time of it."
            )
        )
    return findings


def _breaks(compilation: Compilation) -> str:
    return f" and broke off at {counted(compilation.breaks, 'place')}" if compilation.breaks else ""
