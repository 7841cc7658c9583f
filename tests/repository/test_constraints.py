"""constraints.txt pins a version of every dependency that pyproject.toml accepts, and nothing but
names and versions.
"""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.helpers.paths import ROOT

SCRIPT = ROOT / ".ci" / "constraints.py"


def pinned(text: str) -> dict[str, str]:
    return {
        name: version for name, _, version in (line.partition("==") for line in text.splitlines())
    }


def test_every_dependency_is_pinned_to_an_accepted_version() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    versions = pinned((ROOT / "constraints.txt").read_text())
    for text in (*project["dependencies"], *extras["digits"], *extras["dev"]):
        required = Requirement(text)
        assert required.specifier.contains(
            versions[canonicalize_name(required.name)], prereleases=True
        ), text


@pytest.mark.process
def test_packages_of_this_python_are_left_alone(tmp_path: Path) -> None:
    given = tmp_path / "constraints.txt"
    given.write_text("numpy==0.0.1\ntorch==0.0.1\nnot-installed-here==1.2\n")
    printed = subprocess.run(
        [sys.executable, str(SCRIPT), "keep", str(given)],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    ).stdout
    kept = pinned(printed)
    assert "numpy" not in kept
    assert kept["not-installed-here"] == "1.2"
    assert kept["torch"] != "0.0.1"
