"""What users install: a wheel holds every file of the package, and runs without the repository."""

import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path
from zipfile import ZipFile

import pytest

from tests.helpers.paths import DATA, EXAMPLE_RUN, ROOT

pytestmark = [pytest.mark.process, pytest.mark.timeout(600)]

TOPS = ("profiling", "launch", "analysis")
SUFFIXES = (".py", ".html", ".css", ".js", ".typed")


def run(*command: object, cwd: Path) -> str:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    words = [str(one) for one in command]
    ended = subprocess.run(
        words, cwd=cwd, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy: a `build` folder left in the repository would hide what is missing."""
    folder = tmp_path_factory.mktemp("wheel")
    for name in TOPS:
        shutil.copytree(
            ROOT / name, folder / "source" / name, ignore=shutil.ignore_patterns("__pycache__")
        )
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder / "source")
    pip_wheel = (
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--wheel-dir",
        folder,
    )
    run(*pip_wheel, folder / "source", cwd=folder)
    (built,) = folder.glob("dpscope-*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path) -> Path:
    """An environment's folder of programs: the wheel, and what this environment has except
    dpscope.
    """
    environment = wheel.parent / "environment"
    venv.create(environment, with_pip=False)
    (site,) = environment.glob("lib/python*/site-packages")
    others = [path for path in sys.path if Path(path).name in ("site-packages", "dist-packages")]
    # Folders named in a .pth are searched; their own .pth files, such as dpscope's for editing, are
    # not run.
    (site / "others.pth").write_text("\n".join(others) + "\n")
    python = environment / "bin" / "python"
    pip = (sys.executable, "-m", "pip", "--quiet", "--python", python)
    run(*pip, "install", "--no-deps", "--no-index", "--ignore-installed", wheel, cwd=wheel.parent)
    code = "import dpscope.analysis.traces.ranks as found; print(list(found.__path__))"
    assert str(environment) in run(python, "-c", code, cwd=wheel.parent)
    return environment / "bin"


def test_the_wheel_holds_every_file_and_nothing_else(wheel: Path) -> None:
    names = {
        name
        for name in ZipFile(wheel).namelist()
        if not name.partition("/")[0].endswith(".dist-info")
    }
    files = [path for top in TOPS for path in (ROOT / top).rglob("*") if path.suffix in SUFFIXES]
    assert len(files) > 200
    assert names == {f"dpscope/{path.relative_to(ROOT)}" for path in files}


def test_the_installed_command_reads_a_trace_and_writes_a_report(
    installed: Path, tmp_path: Path
) -> None:
    dpscope = installed / "dpscope"
    printed = run(
        dpscope,
        "analyze",
        DATA / "a100x2_ddp_resnet50_rank0.json.gz",
        "--format",
        "csv",
        cwd=tmp_path,
    )
    assert printed.startswith("rank,device,step")
    assert len(printed.splitlines()) == 1 + 3  # a heading and three steps, as the trace holds
    shutil.copytree(EXAMPLE_RUN, tmp_path / "run")
    run(dpscope, "analyze", tmp_path / "run", cwd=tmp_path)
    page = (tmp_path / "run" / "report" / "report.html").read_text()
    assert page.rstrip().endswith("</html>")
    assert "<style>" in page
    assert "<script" in page
