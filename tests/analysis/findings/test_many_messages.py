"""Many small collectives and one large bucket: causes are ranked by the exposed time that they
explain, not by bytes.
"""

from pathlib import Path
from typing import Any

import pytest

from dpscope.analysis.findings.no_overlap import overlap_reasons, waiting_findings
from dpscope.analysis.output.traces_screen import ReadJob
from dpscope.analysis.traces.ranks.job import Job
from dpscope.analysis.traces.ranks.trace_analysis import analyze_traces
from tests.helpers.known import known
from tests.helpers.made_traces import ALL_REDUCE, Event, launch, on_device, step, write
from tests.helpers.made_verdicts import said

MS = 1e3
COMPUTE_MS, SMALL_MS, BUCKET_MS = 1.0, 0.23, 6.2


def with_messages(folder: Path, small: int, elements: int = 1_000, ranks: int = 2) -> Job:
    """Steps of a rank: so many times 1 ms compute and a small all-reduce of 0.23 ms, then a bucket
    of 100 MB in 6.2 ms.
    """
    for rank in range(ranks):
        events: list[Event] = []
        now, count = 0.0, 0
        for number in range(4):
            begin, own = now, list[Event]()
            for size, length_ms in (*((elements, SMALL_MS),) * small, (25_000_000, BUCKET_MS)):
                own += _computed_and_reduced(begin, now, 2 * count + 1, size, length_ms)
                now += (COMPUTE_MS + length_ms) * MS
                count += 1
            events += [step(number, begin, now - begin), *own]
        write(folder, events, rank, 2)
    return analyze_traces([folder])


def _computed_and_reduced(
    begin: float, now: float, first: int, elements: int, length_ms: float
) -> list[Event]:
    """Both are launched at the step's begin; `first` is the first one's correlation."""
    collective: dict[str, Any] = {
        "Collective name": "allreduce", "In msg nelems": elements, "Out msg nelems": elements, "dtype": "Float",
        "Process Group Name": "0", "Process Group Ranks": "[0, 1]", "Group size": 2, "Seq": first,
    }  # fmt: skip
    reduced = now + COMPUTE_MS * MS
    return [
        launch(first, begin + 1),
        on_device("gemm", now, COMPUTE_MS * MS, first),
        launch(first + 1, begin + 2),
        on_device(ALL_REDUCE, reduced, length_ms * MS, first + 1, stream=20, **collective),
    ]


def test_sixty_small_collectives_explain_more_than_the_bucket_with_all_bytes(
    tmp_path: Path,
) -> None:
    """60 x 0.23 = 13.8 of 20 ms exposed (69%); the bucket holds 100 of 100.24 MB and explains 6.2
    ms.
    """
    analysis = with_messages(tmp_path, 60)
    messages = analysis.messages
    assert [messages.small_us, messages.large_us, messages.small_count] == pytest.approx(
        [13.8e3, 6.2e3, 60]
    )
    first = overlap_reasons(analysis)[0]
    assert (
        first.text
        == "69% of the exposed time (13.8 ms of 20.0 ms) is in small collectives, 60 a step"
    )
    (finding,) = (one for one in waiting_findings(analysis) if one.code == "no_overlap")
    assert "send fewer messages" in finding.next_step
    verdict = ReadJob(analysis).verdict
    assert "send fewer messages: 60 collectives of at most 256 KiB" in said(verdict, "next")
    assert known(verdict.saves_at_most_us) == pytest.approx(20e3)
    assert "faster link" not in said(verdict, "next")


@pytest.mark.parametrize(("small", "elements"), [(20, 1_000), (7, 1_000), (60, 100_000)])
def test_few_or_large_messages_are_not_the_cause(tmp_path: Path, small: int, elements: int) -> None:
    """20 x 0.23 ms are 4.6 of 10.8 ms, less than the bucket; 60 of 400 kB are no small ones."""
    analysis = with_messages(tmp_path, small, elements)
    assert "many_messages" not in {one.name for one in overlap_reasons(analysis)}
    assert ": larger batch, faster link" in said(ReadJob(analysis).verdict, "next")
