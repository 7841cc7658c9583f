"""Records of collectives, of which `dpscope analyze` alone makes a report: they hold no steps."""

from pathlib import Path

from dpscope.analysis.traces.ranks.rank_tables import RankTables
from dpscope.analysis.traces.reading.chunks import ReadLimits
from dpscope.profiling.store.errors import DpscopeError


def read(file: Path, limits: ReadLimits) -> RankTables:
    """Raises DpscopeError: the readers of `analysis/whole_job` read such files."""
    raise DpscopeError(
        f"{file} records collectives and no steps: read it with dpscope analyze; here name traces"
    )
