"""Which file shows which finding of the trace engine, checked as these files are run."""

from collections.abc import Iterator
from unittest.mock import patch

import pytest

from dpscope.profiling.records.finding import Finding, FindingCode
from tests.helpers.paths import ROOT

FOLDER = ROOT / "tests" / "analysis" / "traces"
# Shown there with their numbers, next to traces that lack them; those not listed are in ranks/test_trace_findings.py.
SHOWN_IN = {
    "reading/test_reader.py": {
        "events_repaired", "events_unreadable", "events_without_time", "gzip_damaged", "gzip_trailing_bytes",
        "negative_durations", "trace_truncated",
    },
    "reading/test_fused_ranks.py": {"fused_events_unowned", "fused_ranks"},
    "steps/test_breakdown.py": {"events_of_no_step", "steps_empty"},
    "steps/test_devices.py": {"device_not_read", "trace_incomplete"},
    "steps/test_without_launches.py": {"steps_outlasted"},
    "ranks/test_jobs.py": {"several_jobs", "trace_of_another_job"},
    "ranks/test_matching.py": {"collectives_unmatched"},
    "ranks/test_parallelism.py": {"parallelism"},
    "ranks/test_step_findings.py": {"device_idle", "launch_bound", "step_times_apart", "steps_numbered_differently"},
    "ranks/test_unknown_groups.py": {"groups_unknown"},
}  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def raised_where_they_are_shown(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail at the end of a file that has run as a whole, in this process, if one of its findings was never raised in it."""
    expected, raised = SHOWN_IN.get(str(request.path.relative_to(FOLDER)), set()), set()
    make = FindingCode.finding

    def recorded(code: FindingCode, *arguments: str, **severity: str) -> Finding:
        raised.add(code.code)
        return make(code, *arguments, **severity)  # type: ignore[arg-type]

    with patch.object(FindingCode, "finding", recorded):
        yield
    tests = {name for name in vars(request.module) if name.startswith("test_")}
    chosen = {item.originalname for item in request.session.items if item.path == request.path}  # type: ignore[attr-defined]
    divided = request.config.getoption("dist", "no") not in ("no", "loadfile")
    if tests == chosen and not divided and not request.session.testsfailed:
        assert expected <= raised, f"{request.path.name} never raises {expected - raised}"
