"""A study of examples/studies run with a tiny model: its tables hold measured values, and the reasons for missing ones."""

import io
import re
from pathlib import Path

import pytest
from rich.console import Console

from dpscope.analysis.output.analyze import Targets, print_run
from dpscope.launch.measuring.run import run_sweep
from dpscope.launch.planning.run_config import load_config
from tests.helpers.light_torchrun import light_jobs
from tests.helpers.paths import ROOT, USER_MODELS
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


def test_a_study_is_measured_and_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(USER_MODELS)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
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
    assert [one.cell.name for one in outcome.results] == ["single-d1-b2", "ddp-d2-b2", "single-d1-b4"]

    printed = io.StringIO()
    assert print_run(out, "table", True, Targets(), Console(file=printed, width=120))
    text = printed.getvalue()
    tables = tables_of(text)
    weak = tables["Epoch seconds and speedup at fixed batch per device"]
    strong = tables["Epoch seconds and speedup at fixed global batch"]
    assert "epoch seconds are measured whole epochs" in weak
    for lines in (weak, strong):
        (epoch,) = [line.split() for line in lines if line.startswith("ddp") and "epoch [s]" in line]
        (speedup,) = [line.split() for line in lines if line.startswith("ddp") and "speedup" in line]
        assert [entry for entry in epoch[4:] if entry != "NA"]
        assert [entry for entry in speedup[4:] if entry != "NA"]
    costs = tables["Compute and communication of an epoch, measured and estimated"]
    for lines, quantities in (
        (costs, "epoch [s];compute [s];communication, measured [s];exposed, measured [s];estimate T_N-T_1(G)/N [s]"),
        (tables["Bandwidth and utilisation"], "all-reduces, busbw [GB/s];all communication [GB/s]"),
        (tables["Epoch seconds with and without data loading"], "with loading [s];without [s]"),
    ):
        for quantity in quantities.split(";"):
            (line,) = [one for one in lines if one.startswith("ddp") and quantity in one]
            *_, value = (float(entry) for entry in line.split()[-2:] if re.fullmatch(r"-?[\d.]+(e[+-]\d+)?", entry))
            assert value > 0 or "estimate" in quantity
    published = [line.split() for line in tables["Published values of the same cells (other hardware)"]]
    found = [line[:2] for line in published if line[0].startswith("ddp")]
    assert found == [["ddp-d2-b2", "epoch"], ["ddp-d2-b2", "speedup,"]]
    assert "12.5" in text
    assert "20 s" not in text  # of nn.DataParallel, which was not measured
    missing = [line for line in text.splitlines() if line.startswith("Not printed.")]
    for reason in ("no link bandwidth known", "nothing was trained here"):
        assert sum(reason in line for line in missing) == 1, reason
    assert "None" not in text
    assert not re.search(r"\('|\[\d|nan\b", text)  # no Python tuple or list, no bare NaN
    for title, lines in tables.items():
        rows = [line for line in lines if re.match(r"(single|ddp)", line)]
        assert rows or title.startswith("Not printed"), f"{title} is empty"
