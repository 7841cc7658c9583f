"""Each other cell of a run predicted from the base: which cells, and the band that their errors
give.
"""

from dataclasses import replace

import msgspec
import pytest

from dpscope.analysis.traces.ranks.job import Job
from dpscope.analysis.what_if.bases import Question
from dpscope.analysis.what_if.cell_errors import errors_of_cells, with_cell_errors
from dpscope.profiling.records.strategies import STRATEGIES
from tests.helpers.known import known
from tests.helpers.run_cells import in_cell, optioned, run_of


@pytest.mark.long
def test_only_cells_that_a_scenario_describes_show_the_error(
    question: Question, cell: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another precision, a compiled model, buckets as views or another strategy are other programs;
    buckets and hooks are scenarios."""
    monkeypatch.setitem(STRATEGIES, "ddp-hooked", replace(STRATEGIES["ddp"], plainer="ddp"))
    other = [
        optioned(cell, 1, **one)
        for one in ({"amp": "bf16"}, {"compile": "default"}, {"ddp_args": "static_graph=true"})
    ]
    other.append(in_cell(cell, msgspec.structs.replace(cell.cell, strategy="ddp-hooked")))
    alike = [
        optioned(cell, 1, **one)
        for one in ({"bucket_mb": 5.0}, {"comm_hook": "fp16"}, {"overlap": "off"})
    ]
    found = errors_of_cells(question, run_of(*other, *alike))
    assert [one.cell for one in found.cells] == [one.cell.name for one in alike]
    measured = run_of(cell, *alike, optioned(cell, 1, amp="bf16", bucket_mb=5.0))
    found = errors_of_cells(replace(question, cell=other[0]), measured)
    assert [one.cell for one in found.cells] == [f"{cell.cell.name}-bucket-5mb-amp-bf16"]


@pytest.mark.long
def test_the_error_of_one_other_cell_is_used_and_named(question: Question, cell: Job) -> None:
    """The error is not called assumed where a cell measures it."""
    question = replace(question, base=replace(question.base, slowed=None))
    other = optioned(cell, 1.2, bucket_mb=5.0)
    run = replace(known(question.run), cells={**known(question.run).cells, other.cell.name: other})
    measured, errors = with_cell_errors(replace(question, run=run))
    assert measured.base.method_error is not None
    assert "Error on 1 other cell of this run: median " in errors.sentence
    _, none = with_cell_errors(question)
    assert none.sentence == "Error: 4% assumed; no other cell of this run tests the method."
