"""Values that people derived from epoch times, audited: does the named method give the printed digits, and what holds?

python examples/published/audit_claims.py [TABLE CLAIMS] [--format table|json|markdown]

Without arguments the five published studies beside this file. Part of the repository and not of dpscope: METHODS in
`audit/claims.py` are the formulas of these studies, their mistakes included.
"""

import argparse
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1]))

from dpscope.analysis.epoch_times.table import read_epoch_times  # noqa: E402 (found by the line above, run by path)
from dpscope.profiling.store.errors import DpscopeError  # noqa: E402
from examples.published.audit.report import audit_report, render  # noqa: E402
from examples.published.audit.table import read_claims  # noqa: E402


def main(arguments: list[str] | None = None) -> int:
    """Print the audit; exit status 2, with one line, where a table cannot be read."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("table", type=Path, nargs="?", default=HERE / "epoch_times.csv", help="CSV of epoch times")
    parser.add_argument(
        "claims", type=Path, nargs="?", default=HERE / "derived_values.csv", help="CSV of derived values"
    )
    parser.add_argument("--format", choices=("table", "json", "markdown"), default="table")
    chosen = parser.parse_args(arguments)
    try:
        report = audit_report(read_epoch_times(chosen.table), read_claims(chosen.claims))
    except DpscopeError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    sys.stdout.write(render(report, chosen.format))
    return 0


if __name__ == "__main__":
    sys.exit(main())
