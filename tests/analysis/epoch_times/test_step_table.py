"""Tables of step times: what their columns mean, and what is refused."""

from pathlib import Path

import pytest

from dpscope.analysis.epoch_times.table import read_epoch_times
from dpscope.profiling.store.errors import DpscopeError


def table(folder: Path, text: str) -> Path:
    path = folder / "steps.csv"
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("ranks,step_ms\n", "has headings but no rows"),
        ("step_ms\n5\n", "no column ranks"),
        ("ranks,step_ms\n0,5\n", "row 2, column ranks: '0' is not a whole number"),
        ("ranks,step_ms\n1,5\n2,-3\n", "row 3, column step_ms: '-3' is not milliseconds above 0"),
        (
            "ranks,step_ms\n1,5\n2,1O5\n",
            "row 3, column step_ms: '1O5' is not a number; write milli",
        ),
        ('ranks,step_ms\n1,5\n2,"1,005"\n', "row 3, column step_ms: '1,005' is not a number"),
        ("ranks,step_ms\n1,5\n2,inf\n", "row 3, column step_ms: 'inf' is not a number"),
        ("ranks,step_ms\n2,nan\n", "row 2, column step_ms: 'nan' is empty"),
        ("ranks,step_ms,batch_per_rank\n2,5,\n", "row 2, column batch_per_rank: '' is empty"),
        ("ranks,step_ms,strategy\n2,5,single\n", "row 2, column ranks: '2' for strategy single"),
        (
            "ranks,step_ms,nodes\n2,5,3\n",
            "row 2, column nodes: '3' for 2 devices; a node has at least one",
        ),
    ],
)
def test_mistakes(tmp_path: Path, text: str, part: str) -> None:
    with pytest.raises(DpscopeError) as caught:
        read_epoch_times(table(tmp_path, text))
    assert part in str(caught.value)
    assert "\n" not in str(caught.value)
