"""The repository's shape: packaging, and which layer may import which."""

import ast
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
READ_BY_ANALYSIS = {
    "run_store",
    "run_types",
    "timing_variables",
    "phases",
    "event_log",
    "calibration_types",
    "equality_types",
    "link_types",
    "link_specifications",
    "train_types",
    "train_store",
    "training_mirror",
    "training_event_log",
}
SOURCES = sorted(path for folder in ("profiling", "launch", "analysis") for path in (ROOT / folder).rglob("*.py"))


def imported_modules(path: Path) -> set[str]:
    """Every dpscope module a file imports, wherever in it."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} has a relative import"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return {name for name in names if name.startswith("dpscope.")}


def test_profiling_has_no_init() -> None:
    # Python 3.15 has a package of that name, which a folder with __init__.py would hide.
    assert (ROOT / "profiling").is_dir()
    assert not (ROOT / "profiling" / "__init__.py").exists()


def test_every_folder_with_python_is_packaged() -> None:
    tool = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    packaged = {tool["package-dir"][name] for name in tool["packages"]}
    found = {str(path.parent.relative_to(ROOT)) for path in SOURCES}
    assert found == packaged


def test_no_file_is_named_like_a_standard_module() -> None:
    assert len(SOURCES) > 30
    assert {path.stem for path in SOURCES if path.stem in sys.stdlib_module_names} == set()


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_imports_point_one_way(path: Path) -> None:
    allowed = {
        "profiling": ("dpscope.profiling",),
        "launch": ("dpscope.profiling", "dpscope.launch"),
        "analysis": ("dpscope.analysis", *(f"dpscope.profiling.{name}" for name in READ_BY_ANALYSIS)),
    }[path.parent.name]
    if path.name in ("cli.py", "cli_learning.py"):
        allowed = ("dpscope.",)
    strangers = {name for name in imported_modules(path) if not name.startswith(allowed)}
    assert strangers == set()


def loaded_after_importing(modules: list[str]) -> list[str]:
    code = "; ".join([*(f"import {name}" for name in modules), "import sys; print(*sys.modules)"])
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    return ended.stdout.split()


def test_analysis_and_what_it_reads_import_no_torch() -> None:
    analysis = [f"dpscope.analysis.{path.stem}" for path in SOURCES if path.parent.name == "analysis"]
    read = [f"dpscope.profiling.{name}" for name in READ_BY_ANALYSIS if (ROOT / f"profiling/{name}.py").exists()]
    loaded = loaded_after_importing([name for name in analysis if not name.endswith("__init__")] + read)
    assert "dpscope.profiling.store.folders" in loaded
    assert "torch" not in loaded


def test_planning_a_run_imports_no_torch() -> None:
    loaded = loaded_after_importing(
        [f"dpscope.launch.{name}" for name in ("cli", "run_config", "plan", "sweep", "torchrun")]
    )
    assert "dpscope.launch.measuring.run" in loaded
    assert "torch" not in loaded
