"""The repository's shape: packaging, which folder may import which, and how much files and
functions may hold.
"""

import ast
import subprocess
import sys
import tomllib
from collections import Counter
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from tests.helpers.paths import ROOT
from tests.helpers.sources import SOURCES, TOPS, syntax_nodes
from tests.repository import weights

# What each folder may import besides itself, lowest first: a folder may name only folders listed
# above it.
_PERMISSIONS = """
profiling/records:
profiling/store: profiling/records
profiling/machine: profiling/{records,store}
profiling/instruments: profiling/{machine,records,store}
profiling/mirrors: profiling/{records,store}
profiling/attached: profiling/{instruments,machine,records,store}
launch/jobs: profiling/{machine,records,store}
launch/nodes: launch/jobs profiling/{machine,records,store}
launch/attach: launch/jobs profiling/{attached,instruments,machine,records,store}
launch/workload: launch/jobs profiling/{instruments,records,store}
launch/planning: launch/{jobs,workload} profiling/{machine,records,store}
launch/measuring: launch/{jobs,planning,workload} profiling/{instruments,machine,records,store}
launch/learning: launch/{jobs,planning,workload} profiling/{instruments,machine,mirrors,records,store}
analysis/stats:
analysis/text: profiling/{records,store}
analysis/costs: analysis/{stats,text} profiling/{machine,records,store}
analysis/traces/reading: profiling/{records,store}
analysis/traces/steps: analysis/traces/reading profiling/records
analysis/traces/ranks: analysis/{costs,stats,text} analysis/traces/{reading,steps}
  profiling/{machine,records,store}
analysis/traces/merge: analysis/text analysis/traces/{ranks,reading,steps} profiling/{records,store}
analysis/bundle: analysis/text analysis/traces/reading profiling/{records,store}
analysis/training: analysis/{stats,text} profiling/{machine,records,store}
analysis/runs: analysis/{stats,text,training} analysis/traces/{ranks,reading,steps}
  profiling/{machine,records,store}
analysis/cells: analysis/{costs,runs,stats,text,training} analysis/traces/{ranks,reading,steps}
  profiling/{machine,records,store}
analysis/figures: analysis/{cells,costs,runs,stats,text,training} analysis/traces/{ranks,reading} profiling/{records,store}
analysis/what_if: analysis/{cells,costs,figures,runs,stats,text} analysis/traces/{ranks,reading,steps}
  profiling/{machine,records,store}
analysis/findings: analysis/{cells,costs,runs,stats,text,training} analysis/traces/{ranks,reading,steps} profiling/records
analysis/report: analysis/{cells,costs,figures,findings,runs,stats,text,training}
  analysis/traces/{reading,ranks,steps} analysis/what_if profiling/{machine,records,store}
analysis/whole_job: analysis/{costs,figures,findings,text} analysis/traces/{ranks,reading,steps}
  profiling/{records,store}
analysis/equality: profiling/{records,store}
analysis/output: analysis/{bundle,cells,costs,equality,figures,findings,report,runs,text,training,whole_job}
  analysis/traces/{merge,ranks,reading,steps} profiling/{machine,mirrors,records,store}
analysis/epoch_times: analysis/{costs,stats,text} profiling/{records,store}
analysis: analysis/{cells,costs,epoch_times,output,report,runs,stats} analysis/traces/{merge,ranks,reading,steps}
  analysis/what_if profiling/{machine,store}
launch/commands: analysis/{bundle,costs,output,epoch_times,report,runs,stats,text,what_if}
  analysis/traces/{ranks,reading}
  launch/{attach,jobs,learning,measuring,nodes,planning}
  profiling/{machine,mirrors,records,store}
launch: launch/{commands,jobs,learning,measuring} profiling/{machine,store}
"""


def expanded(text: str) -> set[str]:
    """The names in ``a/{b,c} d``."""
    groups = (word.removesuffix("}").partition("{") for word in text.split())
    return {f"{start}{end}" for start, _, ends in groups for end in ends.split(",")}


MAY_IMPORT = {
    folder: expanded(others)
    for folder, _, others in (
        line.partition(":") for line in _PERMISSIONS.replace("\n  ", " ").strip().splitlines()
    )
}
MOST_FILES = 40
TORCH_FREE = (
    "profiling/records",
    "profiling/store",
    "profiling/mirrors",
    "launch/planning",
    "launch/nodes",
    "launch/jobs/torchrun.py",
)


def folder_of(path: Path) -> str:
    return str(path.parent.relative_to(ROOT))


@cache
def imported_files(path: Path) -> set[Path]:
    """Every file of dpscope that a file imports, wherever in it."""
    names: list[str] = []
    for node in syntax_nodes(path):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} has a relative import"
        if isinstance(node, ast.Import | ast.ImportFrom):
            start = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
            names += [f"{start}{alias.name}" for alias in node.names]
    return {file_of(name) for name in names if name.startswith("dpscope.")}


@cache
def file_of(name: str) -> Path:
    """The file that holds a dotted name: a module, or something in it."""
    inside = ROOT.joinpath(*name.split(".")[1:])
    modules = (inside.with_suffix(".py"), inside.parent.with_suffix(".py"))
    found = [
        path
        for path in (*modules, inside / "__init__.py", inside.parent / "__init__.py")
        if path.exists()
    ]
    assert found, f"{name} is no module and in none"
    return found[0]


def test_profiling_has_no_init() -> None:
    # Python 3.15 has a package of that name, which a folder with __init__.py would hide.
    assert (ROOT / "profiling").is_dir()
    assert list((ROOT / "profiling").rglob("__init__.py")) == []


def test_every_folder_with_python_is_packaged() -> None:
    tool = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    listed = {name.removeprefix("dpscope.").replace(".", "/") for name in tool["packages"]}
    assert {f"dpscope.{top}": top for top in TOPS} == tool["package-dir"]
    assert listed == {folder_of(path) for path in SOURCES} | set(TOPS), "list it in pyproject.toml"


def test_no_file_or_folder_is_named_like_a_standard_module() -> None:
    assert len(SOURCES) > 200
    names = {path.stem for path in SOURCES} | {
        path.parent.name for path in SOURCES if path.parent.parent != ROOT
    }
    assert names & set(sys.stdlib_module_names) == set(), "choose another name"


def test_folders_import_only_what_they_may_and_use_every_permission() -> None:
    seen: dict[str, set[str]] = {}
    for path in SOURCES:
        imported = {folder_of(file) for file in imported_files(path)} - {folder_of(path)}
        seen.setdefault(folder_of(path), set()).update(imported)
    assert {folder for folder, others in seen.items() if others} <= set(MAY_IMPORT), (
        "give the folder a line in _PERMISSIONS"
    )
    others = {
        folder: (seen[folder] - may, may - seen[folder]) for folder, may in MAY_IMPORT.items()
    }
    assert {folder: one for folder, one in others.items() if any(one)} == {}, (
        "not permitted, and permitted for nothing"
    )


def test_permissions_point_one_way() -> None:
    order = list(MAY_IMPORT)
    below = {
        folder: others - set(order[: order.index(folder)]) for folder, others in MAY_IMPORT.items()
    }
    assert {folder: one for folder, one in below.items() if one} == {}, (
        "may import what stands below it"
    )
    tops = {
        folder: {other.partition("/")[0] for other in others}
        for folder, others in MAY_IMPORT.items()
    }
    assert {
        folder for folder, one in tops.items() if folder[:6] == "launch" and "analysis" in one
    } == {"launch/commands"}
    assert not [
        folder for folder, one in tops.items() if folder[:8] == "analysis" and "launch" in one
    ]


def test_no_file_imports_itself_in_a_circle() -> None:
    # raises CycleError
    TopologicalSorter({path: imported_files(path) - {path} for path in SOURCES}).prepare()


def test_folders_hold_few_files() -> None:
    files = Counter(folder_of(path) for path in SOURCES)
    assert {folder: count for folder, count in files.items() if count > MOST_FILES} == {}, (
        "split the folder by idea, or join files"
    )


def test_files_are_not_packed_and_functions_decide_little() -> None:
    """At most 4.5 syntax nodes a line and 12 decisions a function; what exceeds this is in
    weights.txt, which is current, and may only fall.
    """
    now, before = weights.present(), weights.stored()
    assert weights.risen(before.files, now.files) == {}, (
        "syntax nodes a line: put one idea on a line, or decide less"
    )
    assert weights.risen(before.functions, now.functions) == {}, (
        "decisions: split the function, or decide less"
    )
    assert now.folders <= before.folders, "a folder more: put the file into one that exists"
    fallen = weights.stale(before.files, now.files, weights.SLACK) | weights.stale(
        before.functions, now.functions, 0
    )
    assert (fallen, now.folders) == ({}, before.folders), f"run {weights.COMMAND}"


@pytest.mark.process
def test_analysis_and_planning_import_no_torch() -> None:
    free = [
        path
        for path in SOURCES
        if str(path.relative_to(ROOT)).startswith(("analysis", *TORCH_FREE))
    ]
    names = [
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        for path in free
    ]
    code = "\n".join(f"import dpscope.{name}" for name in (*names, "launch.measuring.run"))
    command = [sys.executable, "-c", f"{code}\nimport sys; print('loaded', *sys.modules)"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    loaded = ended.stdout.splitlines()[-1].split()[1:]
    assert "dpscope.analysis.report.build" in loaded
    assert "torch" not in loaded
