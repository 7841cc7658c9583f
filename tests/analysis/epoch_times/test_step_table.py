"""Tables of step times: what their columns mean, and what is refused."""

from pathlib import Path

import pytest

from dpscope.analysis.epoch_times.estimates import epoch_estimates
from dpscope.analysis.epoch_times.table import read_epoch_times
from dpscope.profiling.store.errors import DpscopeError


def table(folder: Path, text: str) -> Path:
    path = folder / "steps.csv"
    path.write_text(text)
    return path


def test_a_step_is_an_epoch_of_one_step(tmp_path: Path) -> None:
    path = table(tmp_path, "Ranks,batch_per_rank,step_ms,strategy\n1,8,97,single\n4,8,100,ddp\n")
    single, four = read_epoch_times(path).rows
    assert (single.strategy, single.epoch_seconds, single.steps, single.local_batch) == (
        "single",
        0.097,
        1,
        8,
    )
    assert (four.devices, four.global_batch, four.epoch_samples) == (4, 32, 32)
    found = {(one.quantity, one.method): one.value for one in epoch_estimates((single, four))}
    assert found["speedup", "weak"] == pytest.approx(4 * 97 / 100)
    assert found["communication_seconds", "same_local_batch"] == pytest.approx(0.003)


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
