"""Other executors give the same tables wherever a trace is read. Dask runs as a real local cluster if installed."""

import importlib
import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pandas as pd
import pytest

from dpscope.analysis.partials.file import read_partial
from dpscope.analysis.partials.reduce import reduce_traces
from dpscope.analysis.traces.ranks.trace_analysis import analyze_traces
from tests.generated_traces.generator import write_ddp_job

RANKS = 4


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_ddp_job(tmp_path_factory.mktemp("traces"), RANKS)


@pytest.mark.process
@pytest.mark.skipif(importlib.util.find_spec("distributed") is None, reason="dask.distributed is not installed")
def test_a_dask_cluster_reads_the_traces(traces: Path, tmp_path: Path) -> None:
    distributed: Any = importlib.import_module("distributed")
    with (
        distributed.LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None) as cluster,
        distributed.Client(cluster) as client,
        client.get_executor() as executor,
    ):
        found = analyze_traces(traces, executor=executor)
        made = reduce_traces(traces, tmp_path / "dask.dpscope", executor=executor)
    own = analyze_traces(traces)
    for name in ("steps", "collectives", "exposed"):
        pd.testing.assert_frame_equal(getattr(found, name), getattr(own, name), check_exact=True)
    assert (made.ranks, made.read) == (RANKS, RANKS)
    assert read_partial(made.path).rows.equals(read_partial(reduce_traces(traces, tmp_path / "own.dpscope").path).rows)


class Job:
    """What submitit gives in place of a future."""

    def __init__(self, work: Callable[[], object]) -> None:
        self._work = work

    def result(self) -> object:
        return self._work()


class Jobs:
    """An executor whose jobs are no futures; the job of one file is lost, as on a node that went away."""

    def submit(self, work: Callable[..., object], file: Path, *rest: object) -> Job:
        def lost() -> object:
            raise RuntimeError("job 17 is gone")

        return Job(lost if file.name.startswith("0_2") else lambda: work(file, *rest))


def test_jobs_that_are_not_futures_are_awaited_and_a_lost_one_is_reported(traces: Path, tmp_path: Path) -> None:
    made = reduce_traces(traces, tmp_path / "n0.dpscope", executor=cast("Any", Jobs()))
    assert made.ranks == RANKS - 1
    (unread,) = made.unread
    assert "0_2.pt.trace.json.gz ended without an answer (RuntimeError: job 17 is gone)" in unread.message
    assert reduce_traces(traces, made.path).ranks == RANKS
