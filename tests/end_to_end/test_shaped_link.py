"""Two hosts on a link of 200 Mbit/s: bandwidth and readiness in gloo's traces against known
values.
"""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from dpscope.analysis.output.run_screen import Targets
from dpscope.analysis.output.traces_screen import report_of_traces
from dpscope.analysis.traces.ranks.job import Job
from dpscope.analysis.traces.ranks.trace_analysis import analyze_traces
from dpscope.profiling.machine.link_specifications import parse_link
from tests.helpers import paced_ddp
from tests.helpers.hosts import several_hosts, why_no_hosts
from tests.helpers.paths import ROOT

GB_PER_S = 0.2 / 8


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if (why := why_no_hosts()) is not None:
        pytest.skip(why)
    place = tmp_path_factory.mktemp("shaped")
    with several_hosts(2, rate="200mbit") as hosts:
        program = [sys.executable, "-m", "tests.helpers.paced_ddp"]
        jobs = [
            host.start(
                [*program, str(rank), hosts[0].address, str(place)],
                stderr=subprocess.PIPE,
                cwd=ROOT,
            )
            for rank, host in enumerate(hosts)
        ]
        errors = [job.communicate(timeout=240)[1] for job in jobs]
    assert [job.returncode for job in jobs] == [0, 0], errors
    return place


@pytest.fixture(scope="module")
def analysis(folder: Path) -> Job:
    return analyze_traces(sorted(folder.glob("*.json")))


def test_the_link_s_rate_is_read_from_collectives_that_share_it(
    folder: Path, analysis: Job
) -> None:
    """TCP leaves some 1.5% of 0.025 GB/s to headers; two collectives in flight at once do not halve
    it.
    """
    report = report_of_traces(
        analysis, sorted(folder.glob("*.json")), Targets(parse_link("200Mb/s"))
    )
    (row,) = report.comparison.table.to_dict("records")
    assert row["busbw_gb_per_s"] == pytest.approx(0.985 * GB_PER_S, rel=0.05)
    # 4 x 2.5 MB over 0.025 GB/s: 400 ms
    assert row["ring_us"] == pytest.approx(
        paced_ddp.LAYERS * paced_ddp.LAYER_BYTES / GB_PER_S / 1e3
    )
    assert row["transfer_of_link"] == pytest.approx(0.985, rel=0.05)
    assert (
        analysis.collectives.loc[analysis.collectives["kind"] == "all_reduce", "concurrent"] > 0
    ).any()


def test_buckets_are_ready_when_their_gradients_are(folder: Path, analysis: Job) -> None:
    """Gaps between buckets equal those the job recorded itself; queued ones start hundreds of
    milliseconds later. In the clearest step of each rank: in others it may be held up between its
    note and the call.
    """
    table = analysis.collectives[analysis.collectives["kind"] == "all_reduce"]
    for rank in range(2):
        noted = json.loads((folder / f"ready_{rank}.txt").read_text())[-paced_ddp.TRACED :]
        own = table[table["rank"] == rank]
        traced = [
            step.sort_values("ready_us")
            for _, step in own.groupby("step")
            if len(step) == paced_ddp.LAYERS
        ]
        assert len(traced) >= 2
        apart_us, queued = [], 0
        for times_ns, step in zip(noted, traced, strict=False):
            expected_us = np.diff(times_ns) / 1e3
            read_us = np.diff(step["ready_us"].astype(float))
            apart_us.append(abs(read_us - expected_us).max())
            queued += int((step["start_us"] - step["ready_us"] > 50e3).any())
        assert min(apart_us) < 15e3
        assert queued >= 2  # where they started is no answer
