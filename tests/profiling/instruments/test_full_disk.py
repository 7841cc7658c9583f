"""A trace that the disk does not hold: Kineto writes no more and reports nothing; dpscope does, and
leaves no file.
"""

import resource
from pathlib import Path

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from dpscope.profiling.instruments.trace_recorder import _export
from dpscope.profiling.store.errors import DpscopeError


@pytest.mark.long
@pytest.mark.parametrize("most_bytes", [0, 700])
def test_a_trace_without_room_is_reported_as_such(tmp_path: Path, most_bytes: int) -> None:
    """A file may have so many bytes, as on a disk that is nearly full: writing more fails."""
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        torch.ones(4).sum()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, limits[1]))
    try:
        with pytest.raises(
            DpscopeError, match=r"the trace could not be written .* MB are free on its disk"
        ):
            _export(profiler, tmp_path / "traces" / "0_0.pt.trace.json.gz")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert list((tmp_path / "traces").iterdir()) == []
