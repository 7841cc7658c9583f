"""What a run's settings mean for reading it."""

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from dpscope.analysis.comparison import compare
from dpscope.analysis.findings import conclusions
from dpscope.analysis.run_analysis import RunData, load_run

EXAMPLE = Path(__file__).resolve().parents[1] / "examples" / "run_cpu"


@pytest.fixture(scope="module")
def run() -> RunData:
    return load_run(EXAMPLE)


def told(run: RunData, samples: int, steps_per_epoch: int, epochs: int | None = 1) -> list[str]:
    """Findings of the example run as if it had timed epochs of so many synthetic samples, in so many steps a cell."""
    config = msgspec.structs.replace(run.manifest.config, samples=samples, epochs=epochs, data="synthetic")
    cells = {
        name: replace(
            data,
            ranks=tuple(
                (repeat, msgspec.structs.replace(rank, steps_per_epoch=steps_per_epoch)) for repeat, rank in data.ranks
            ),
        )
        for name, data in run.cells.items()
    }
    changed = replace(run, manifest=msgspec.structs.replace(run.manifest, config=config), cells=cells)
    found = conclusions(changed, compare(changed))
    return [finding.message for finding in found if finding.code == "synthetic_epochs"]


def test_whole_synthetic_batches_beyond_the_data_set_are_told(run: RunData) -> None:
    """4 batches of 16 (two devices) are 64 samples where 50 were asked for: 28% more."""
    (message,) = told(run, samples=50, steps_per_epoch=4)
    assert "d2-b8 4 of 16, 28.00% more than the data set" in message
    assert told(run, samples=64, steps_per_epoch=4) == []
    assert told(run, samples=50, steps_per_epoch=4, epochs=None) == []
