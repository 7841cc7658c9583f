"""Why little is hidden, on real gloo processes in which each cause is planted: it is named with its
number, and no other is.

On two cores that others use as well, ranks come late by chance, as in any job: `BY_CHANCE` may
accompany each cause.
"""

import re

import pytest

from dpscope.analysis.findings.no_overlap import OverlapReason, overlap_reasons
from dpscope.analysis.runs.run_data import traced_run
from dpscope.analysis.traces.ranks.job import Job
from tests.end_to_end.strategy_job import run_job
from tests.user_models.planted_overlap import (
    BUFFER_ELEMENTS,
    CASES,
    LARGE_ELEMENTS,
    LAYER_BYTES,
    LAYERS,
    TRACED,
)

BY_CHANCE = {"late_rank", "uneven_ranks"}
ALSO = {"little_computing": {"many_messages"}}  # its many buckets are small
PLANTED = {
    "even": set(),
    "one_bucket": {"one_bucket"},
    "one_bucket_and_a_metric": {"one_bucket"},
    "last_bucket": {"last_bucket"},
    "late_rank": {"late_rank"},
    "buffers": {"broadcast"},
    "little_computing": {"little_computing"},
    "by_hand": {"late_buckets"},
    "sharded": {"all_gather"},
}


@pytest.fixture(scope="module")
def cells(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Job]:
    """One torchrun job of two processes, which train each case for some steps: the traces of each
    as a cell.
    """
    assert set(PLANTED) == set(CASES)
    folder = tmp_path_factory.mktemp("overlap")
    _, traces = run_job("planted_overlap", 2, folder, CASES)
    found = {}
    for name, analysis in traces.items():
        (found[name],) = traced_run(analysis, sorted((folder / name).iterdir())).cells.values()
    return found


def reasons(data: Job) -> dict[str, OverlapReason]:
    return {reason.name: reason for reason in overlap_reasons(data)}


@pytest.mark.parametrize("case", PLANTED)
def test_the_planted_cause_is_named_and_no_other(cells: dict[str, Job], case: str) -> None:
    named = set(reasons(cells[case]))
    assert PLANTED[case] <= named
    assert named - BY_CHANCE - PLANTED[case] - ALSO.get(case, set()) == {"gloo"}


def test_each_cause_has_its_number(cells: dict[str, Job]) -> None:
    texts = {
        case: {name: one.text for name, one in reasons(cells[case]).items()} for case in PLANTED
    }
    whole = LAYERS * LAYER_BYTES
    nearly_all = r"(9\d|100)%"
    assert re.search(
        f"in one bucket of {whole / 1e6:.2f} MB, ready when {nearly_all}",
        texts["one_bucket"]["one_bucket"],
    )
    assert (
        f"all gradients are reduced in one bucket of {whole / 1e6:.2f} MB, ready"
        in texts["one_bucket_and_a_metric"]["one_bucket"]
    )
    large = 4 * LARGE_ELEMENTS
    with_large = large + (LAYERS - 1) * LAYER_BYTES
    assert (
        f"the last of {LAYERS} buckets holds {large / with_large:.0%} of the bytes ({large / 1e6:.1f} MB of "
        f"{with_large / 1e6:.1f} MB)"
    ) in texts["last_bucket"]["last_bucket"]
    assert f"(last in {TRACED} of {TRACED} traced steps)" in texts["late_rank"]["late_rank"]
    assert texts["by_hand"]["late_buckets"].count(f"{LAYER_BYTES / 1e6:.2f} MB at 100%") == 4
    assert "and 2 more" in texts["by_hand"]["late_buckets"]
    broadcasts = cells["buffers"].collectives
    assert (broadcasts.loc[broadcasts["kind"] == "broadcast", "bytes"] == 4 * BUFFER_ELEMENTS).all()
