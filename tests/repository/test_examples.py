"""The examples work: the notebook runs, the example run makes a report."""

import ast
import json
import re

import nbformat
import pytest
from nbclient import NotebookClient

from tests.helpers.paths import ROOT


@pytest.mark.process
def test_the_notebook_runs_in_a_kernel_that_starts_in_its_folder() -> None:
    """Jupyter starts a kernel in the notebook's folder; the values are those of
    tests/data/README.md.
    """
    text = json.loads((ROOT / "examples" / "read_a_run.ipynb").read_text())
    last = "[*steps['communication_us'].tolist(), *sorted(comparison.table['cell'])]"
    text["cells"].append({**text["cells"][1], "id": "last", "source": last})
    notebook = nbformat.reads(json.dumps(text), as_version=4)  # type: ignore[no-untyped-call]
    NotebookClient(
        notebook, timeout=120, resources={"metadata": {"path": str(ROOT / "examples")}}
    ).execute()
    *times, ddp, dp, shared, whole = ast.literal_eval(
        notebook.cells[-1].outputs[0]["data"]["text/plain"]
    )
    assert times == pytest.approx([11_989.021, 12_300.029, 22_587.442], abs=0.01)
    assert (ddp, dp, shared, whole) == (
        "ddp-d2-b128",
        "dp-host-d2-b128",
        "single-d1-b128",
        "single-d1-b256",
    )
    sources = "".join(cell.source for cell in notebook.cells)
    assert set(re.findall(r"dpscope[\w.]*", sources)) - {"dpscope"} == {"dpscope.analysis"}
