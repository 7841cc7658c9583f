"""What a cell's communication takes of a step, in a sentence."""

from collections.abc import Hashable, Iterator, Mapping
from typing import Any

import pandas as pd

from dpscope.analysis.cells.row import as_number
from dpscope.analysis.findings.slow_tracing import slowed_by_tracing, slowed_text
from dpscope.analysis.text.units import show_time
from dpscope.profiling.records.finding import Finding
from dpscope.profiling.records.run_codes import RunCode
from dpscope.profiling.records.strategies import traits_of


def known_values(row: Mapping[Hashable, Any]) -> dict[str, Any]:
    """A row of a comparison's table by the names of its columns, None for what is missing."""
    return {str(name): None if pd.isna(value) else value for name, value in row.items()}


def communication_finding(values: Mapping[str, object]) -> Iterator[Finding]:
    """The finding about one row of a comparison's table, as `known_values` gives it; none where nothing is known."""
    total, hidden, exposed = (as_number(values[name]) for name in ("communication_us", "hidden_us", "exposed_us"))
    if total is None or hidden is None or exposed is None or not total:
        return
    if (slowed := slowed_by_tracing(values)) is not None:
        yield RunCode.COMMUNICATION_MEASURED.finding(
            f"{values['cell']}: {slowed_text(values, slowed)}",
            "measure a larger batch or model, whose operations take longer",
        )
        return
    traits = traits_of(str(values["strategy"]))
    what = f"{traits.communication} {'take' if traits.host_copies else 'takes'}"
    wait = as_number(values["exposed_wait_us"])
    waiting = f", {show_time(wait)} of that waiting for a late rank" if wait is not None else ""
    yield RunCode.COMMUNICATION_MEASURED.finding(
        f"{values['cell']}: {what} {show_time(total)} a step, {hidden / total:.0%} of it hidden behind compute, "
        f"{show_time(exposed)} exposed{waiting}",
        "copying within one process: no link is involved"
        if traits.host_copies
        else "at most the exposed time can be saved, and a faster link does not shorten the waiting in it",
    )
