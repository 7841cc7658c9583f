"""A study of examples/studies run with a tiny model, in whole epochs: its tables hold measured
values.
"""

import io
import re
from pathlib import Path

from rich.console import Console

from dpscope.analysis.output.analyze import Targets, print_run
from dpscope.launch.measuring.run import run_sweep
from dpscope.launch.planning.run_config import load_config
from tests.helpers.light_torchrun import light_jobs
from tests.helpers.paths import ROOT
from tests.helpers.sweeps import tiny_settings

PUBLISHED = """source,hardware,model,data,strategy,devices,batch_size,fixed,quantity,value,unit,method
a report,4x L4,tiny_models:tiny,fake,ddp,2,2,global,epoch_seconds,12.5,s,timed
a report,4x L4,tiny_models:tiny,fake,ddp,2,2,global,speedup,1.9,1,T1/TN
a report,4x L4,tiny_models:tiny,fake,dp,2,2,global,epoch_seconds,20,s,timed
"""


def tables_of(printed: str) -> dict[str, list[str]]:
    """The lines of each table by its title, as they are printed."""
    blocks = [block.splitlines() for block in re.split(r"\n\s*\n", printed.strip())]
    return {lines[0].strip(): lines[1:] for lines in blocks if lines and lines[0].strip()}


def test_a_study_is_measured_and_printed(tmp_path: Path) -> None:
    (tmp_path / "others.csv").write_text(PUBLISHED)
    flags = {
        "strategy": "single,ddp", "devices": "1,2", "batch_size": "4", "scaling": "strong", "epochs": 1, "samples": 24,
        "data": "fake", "published": str(tmp_path / "others.csv"),
    }  # fmt: skip
    small = {name: value for name, value in tiny_settings(**flags).items() if name != "steps"}
    config = load_config(ROOT / "examples/studies/a_epoch_and_speedup.toml", small)
    out = tmp_path / "run"
    with light_jobs():
        outcome = run_sweep(config, out, False, Console(file=io.StringIO()))
    assert outcome.ok
    assert [one.cell.name for one in outcome.results] == [
        "single-d1-b2",
        "ddp-d2-b2",
        "single-d1-b4",
    ]

    printed = io.StringIO()
    assert print_run(out, "table", True, Targets(), Console(file=printed, width=120))
    text = printed.getvalue()
    tables = tables_of(text)
    epochs = tables["Epoch time, speedup and efficiency"]
    assert "epoch: mean of the measured whole epochs" in text
    several = [line.split() for line in epochs if line.startswith("ddp")]
    assert several
    for row in several:
        _, devices, batch, global_batch, epoch_s, without_loading_s, *ratios = row
        assert (int(devices), int(batch), int(global_batch)) == (2, 2, 4)
        assert 0 < float(without_loading_s) <= float(epoch_s)
        assert [ratio for ratio in ratios if ratio != "NA"]
    published = [
        line.split() for line in tables["Published values of the same cells (other hardware)"]
    ]
    found = [line[:2] for line in published if line[0].startswith("ddp")]
    assert found == [["ddp-d2-b2", "epoch"], ["ddp-d2-b2", "speedup,"]]
    assert "12.5" in text
    assert "20 s" not in text  # of nn.DataParallel, which was not measured
