"""What `dpscope reduce` prints."""

from pathlib import Path

from typer.testing import CliRunner

from dpscope.launch.contents import app
from tests.helpers.paths import DATA


def test_traces_of_several_jobs_are_counted_as_traces(tmp_path: Path) -> None:
    """Not as ranks: each of the two is rank 0 of a job."""
    traces = [
        str(DATA / "a100x2_ddp_resnet50_rank0.json.gz"),
        str(DATA / "v100x8_ddp_dlrm" / "rank0.json.gz"),
    ]
    out = tmp_path / "two.dpscope"
    ended = CliRunner().invoke(app, ["reduce", *traces, "-o", str(out)])
    assert ended.exit_code == 0
    written, following = ended.stdout.splitlines()
    assert written.startswith(f"Written: {out}: 2 traces in ")
    assert following.startswith(f"Next: dpscope analyze {out}")
    again = CliRunner().invoke(app, ["reduce", *traces, "-o", str(out)])
    assert again.stdout.splitlines()[0].endswith(", 2 of them reduced before")
