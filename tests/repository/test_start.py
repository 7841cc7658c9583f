"""A start that costs nothing: each command loads what it runs. The times themselves:
benchmarks/whole_process.py.
"""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.paths import DATA, EXAMPLE_RUN, PUBLISHED

pytestmark = pytest.mark.process
HEAVY = {"jinja2", "matplotlib", "scipy", "tensorboard", "torch", "torchvision"}
TRACE = str(DATA / "v100x8_ddp_dlrm" / "rank0.json.gz")


def loaded_after(code: str, *arguments: object) -> set[str]:
    """The packages that a fresh interpreter holds after this code."""
    command = [
        sys.executable,
        "-c",
        f'{code}\nprint("\\nloaded", *sys.modules)',
        *map(str, arguments),
    ]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return {name.split(".")[0] for name in ended.stdout.splitlines()[-1].split()[1:]}


def loaded_by(*arguments: str) -> set[str]:
    """The packages that are loaded after a command that ended well."""
    code = """
import sys
from dpscope.launch.cli import main
try:
    main()
except SystemExit as ended:
    assert not ended.code, ended.code
"""
    return loaded_after(code, *arguments)


@pytest.mark.parametrize("arguments", [("--version",), ("--help",)])
def test_version_and_help_load_the_command_line_alone(arguments: tuple[str, ...]) -> None:
    loaded = loaded_by(*arguments)
    assert "typer" in loaded
    assert loaded & {*HEAVY, "numpy", "pandas", "msgspec", "pydantic"} == set()


def test_a_run_in_a_format_that_programs_read_loads_nothing_that_draws(tmp_path: Path) -> None:
    run = shutil.copytree(EXAMPLE_RUN, tmp_path / "run")
    loaded = loaded_by("analyze", str(run), "--format", "csv")
    assert "numpy" in loaded
    assert loaded & {"matplotlib", "pandas", "tensorboard", "torch"} == set()


@pytest.mark.parametrize("output_format", ["table", "csv"])
def test_analyzing_traces_loads_nothing_that_draws_fits_or_trains(output_format: str) -> None:
    loaded = loaded_by("analyze", TRACE, "--format", output_format)
    assert ("pandas" in loaded) == (output_format == "csv")  # its rows come from a DataFrame
    assert loaded & HEAVY == set()


def test_estimating_from_epoch_times_loads_no_tables() -> None:
    loaded = loaded_by("estimate", str(PUBLISHED / "epoch_times.csv"), "--format", "json")
    assert "msgspec" in loaded
    assert loaded & {*HEAVY, "pandas"} == set()


def test_what_measures_a_cell_and_saves_it_loads_no_tables(tmp_path: Path) -> None:
    """Each process of each job starts with it."""
    code = "import sys, pathlib; from dpscope.launch.measuring import cell; cell.save_samples(pathlib.Path(sys.argv[1]), [])"
    loaded = loaded_after(code, tmp_path / "samples")
    assert {"torch", "pyarrow"} <= loaded
    assert loaded & {"jinja2", "matplotlib", "pandas", "scipy", "tensorboard"} == set()
