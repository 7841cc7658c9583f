"""The documents as a site: every page is there, found by search, and no link is broken."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.paths import ROOT


@pytest.mark.process
def test_site_has_every_page_and_its_pictures(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "mkdocs",
        "build",
        "--quiet",
        "--strict",
        "--site-dir",
        str(tmp_path),
    ]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    built = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert (built.returncode, built.stdout, built.stderr) == (0, "", "")
    pages = {path.stem for path in (ROOT / "docs").glob("*.md")}
    assert {path.parent.name for path in tmp_path.glob("*/index.html")} == pages
    home = (tmp_path / "index.html").read_text()
    assert 'src="images/report.png"' in home
    assert 'href="measures/"' in home
    assert 'href="docs/' not in home
    assert {path.name for path in (tmp_path / "images").iterdir()} == {
        path.name for path in (ROOT / "docs/images").iterdir()
    }
    found = json.loads((tmp_path / "search/search_index.json").read_text())["docs"]
    assert {entry["location"].partition("/")[0] for entry in found} >= pages
