"""A thousand generated ranks with a planted bad node, which is named with its local rank; files of
hosts and their switches.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from dpscope.analysis.traces.ranks.job import Job
from dpscope.analysis.traces.ranks.places import rank_means, spreads
from dpscope.analysis.traces.ranks.trace_analysis import analyze_traces
from dpscope.launch.contents import app
from tests.helpers.many_ranks import PER_NODE, TRANSFER_US, lateness_us, write_partials

RANKS, STEPS, PER_STEP = 1024, 4, 5
BAD_NODE, BAD_LOCAL = 17, 3
BAD = BAD_NODE * PER_NODE + BAD_LOCAL


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("partials")
    write_partials(folder, RANKS, 64, STEPS, PER_STEP, bad_rank=BAD)
    return folder


@pytest.fixture(scope="module")
def analysis(folder: Path) -> Job:
    return analyze_traces(folder)


@pytest.fixture(scope="module")
def waits() -> np.ndarray:
    """(collectives, ranks), by the definition: what each waits is the last one's lateness less its
    own.
    """
    late = lateness_us(RANKS, STEPS * PER_STEP, BAD)
    return np.asarray(late.max(axis=1, keepdims=True) - late)


def shares(waits: np.ndarray) -> np.ndarray:
    """Of all waiting in whole steps the part that is for each rank."""
    waits = waits[PER_STEP:]  # the first window is partial
    last = waits.argmin(axis=1)
    caused = np.zeros(RANKS)
    np.add.at(caused, last, waits.sum(axis=1))
    return np.asarray(caused / waits.sum())


def analyzed(folder: Path) -> Any:
    ended = CliRunner().invoke(app, ["analyze", str(folder), "--format", "json"])
    return ended.exception or json.loads(ended.output)


@pytest.mark.long
def test_the_bad_node_and_its_local_rank_are_named(folder: Path, waits: np.ndarray) -> None:
    caused = shares(waits)
    node = caused.reshape(-1, PER_NODE).sum(axis=1)
    assert node.argmax() == BAD_NODE
    assert 0.6 < node[BAD_NODE] < 0.8
    content = analyzed(folder)
    (finding,) = [
        one["message"] for one in content["findings"] if one["code"] == "waiting_for_node"
    ]
    of_node = caused[BAD] / node[BAD_NODE]
    assert finding == (
        f"node n0017 causes {node[BAD_NODE]:.0%} of all waiting; {of_node:.0%} of that is for its local rank 3 (rank {BAD})"
    )
    assert 0.7 < of_node < 0.8
    assert [row["host"] for row in content["by_host"][:2]] == ["n0017", "n0000"]
    assert content["by_host"][0]["caused_share"] == pytest.approx(node[BAD_NODE])
    assert content["by_local_rank"][0]["local_rank"] == BAD_LOCAL
    assert sum(row["caused_share"] for row in content["by_host"]) == pytest.approx(1.0)
    assert "ranks_missing" not in {one["code"] for one in content["findings"]}


def test_spreads_are_over_the_means_of_ranks(analysis: Job, waits: np.ndarray) -> None:
    # the first window is partial
    whole = waits.reshape(STEPS, PER_STEP, RANKS)[1:].sum(axis=1).mean(axis=0)
    found = {one.quantity: one for one in spreads(rank_means(analysis))}
    wait = found["wait_us"]
    assert (wait.ranks, wait.worst_rank) == (RANKS, int(whole.argmax()))
    assert [wait.median_us, wait.low_us, wait.high_us, wait.worst_us] == pytest.approx(
        [np.median(whole), *np.quantile(whole, (0.05, 0.95)), whole.max()]
    )
    late = found["lateness_us"]
    caused = shares(waits)[BAD] * whole.sum() / (RANKS - 1)
    assert late.worst_rank == BAD
    assert late.worst_us == pytest.approx(caused)
    assert late.far >= 3
    assert found["step_us"].far == 0
    assert analysis.collectives["transfer_us"].astype(float).to_numpy() == pytest.approx(
        TRANSFER_US, abs=1e-3
    )


@pytest.mark.long
@pytest.mark.parametrize(("left_out", "known"), [(5, True), (40, False)])
def test_missing_ranks_are_reported(left_out: int, known: bool, tmp_path: Path) -> None:
    """Of 1,024, 99% are 1,014."""
    missing = frozenset({300, 301, 302, 511, *range(900, 900 + left_out - 4)})
    write_partials(tmp_path, RANKS, 128, 2, 2, left_out=missing)
    found = analyze_traces(tmp_path)
    assert len(found.summaries) == RANKS - left_out
    assert bool(found.collectives["transfer_us"].notna().all()) is known
    (message,) = [
        one["message"] for one in analyzed(tmp_path)["findings"] if one["code"] == "ranks_missing"
    ]
    last = "900" if left_out == 5 else "900 to 935"
    assert message.startswith(
        f"{RANKS - left_out:,} of 1,024 ranks were read, missing: 300 to 302, 511, {last}; "
    )
    assert ("transfer is an upper bound" in message) is known
