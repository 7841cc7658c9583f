"""Files that dpscope did not write are never removed or overwritten: other programs' folders stay
unchanged.
"""

import io
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from matplotlib.figure import Figure
from rich.console import Console

from dpscope.analysis.figures.draw import saved
from dpscope.analysis.output.tensorboard import export_tensorboard
from dpscope.analysis.report.build import make_report, write_report
from dpscope.analysis.report.calibration import save_calibration
from dpscope.analysis.runs.run_data import load_run
from dpscope.launch.jobs.out_folder import check_calibration_place
from dpscope.launch.learning.equal_run import equality_settings, run_equality
from dpscope.launch.learning.train_plan import load_train_config
from dpscope.launch.learning.train_run import _remove_trainings, run_trainings
from dpscope.launch.measuring.run import _remove_measurements, run_sweep
from dpscope.launch.planning.run_config import load_config
from dpscope.profiling.records.calibration import CalibrationPoint
from dpscope.profiling.records.run import Cell
from dpscope.profiling.store.errors import DpscopeError
from dpscope.profiling.store.files import write_json
from dpscope.profiling.store.folders import RunFolder, fits_layout, is_run_folder
from dpscope.profiling.store.ownership import (
    ForeignFileError,
    bears_mark,
    check_events,
    check_overwritable,
    is_calibration,
    is_dpscope_trace,
)
from dpscope.profiling.store.training_folders import TrainFolder
from tests.helpers.paths import EXAMPLE_RUN
from tests.helpers.run_cells import calibration
from tests.helpers.trainings import plain_epochs, record, write_train_json, write_trained

QUIET = Console(file=io.StringIO())
DDP = Cell(strategy="ddp", devices=2, batch_size=16)


def state(folder: Path) -> dict[Path, str | bytes]:
    """Every path below a folder with its content, its link's target, or "folder"."""
    return {
        path: os.readlink(path)
        if path.is_symlink()
        else "folder"
        if path.is_dir()
        else path.read_bytes()
        for path in [folder, *folder.rglob("*")]
    }


def written(folder: Path, *names: str, text: str = "precious") -> Path:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def example(folder: Path) -> Path:
    """The example run."""
    shutil.copytree(
        EXAMPLE_RUN, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("report")
    )
    return folder


def with_manifest(folder: Path, manifest: object) -> Path:
    return written(folder, "manifest.json", text=json.dumps(manifest))


def link(folder: Path, name: str, target: Path) -> Path:
    """Move `name` of the folder to `target` and link to it."""
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.move(folder / name, target)
    (folder / name).symlink_to(target)
    return folder


def with_changed_manifest(folder: Path, **changes: object) -> Path:
    return with_manifest(
        folder, json.loads((example(folder) / "manifest.json").read_text()) | changes
    )


def damaged(folder: Path) -> Path:
    text = (example(folder) / "manifest.json").read_text()
    return written(folder, "manifest.json", text=text[: len(text) // 2])


WEB_APP = {"name": "notes", "icons": [], "start_url": "/", "display": "standalone"}

FOREIGN: dict[str, Callable[[Path], Path]] = {
    "web app": lambda out: written(
        with_manifest(out, WEB_APP), "report/index.html", "cells/a.js", "index.html"
    ),
    "web app named like a run": lambda out: written(
        with_manifest(out, WEB_APP),
        "cells/ddp-d2-b8/repeat0/result.json",
        "report/report.html",
        "equality/settings.json",
    ),
    "manifest that is a list": lambda out: with_manifest(out, [1, 2]),
    "manifest that is no JSON": lambda out: written(out, "manifest.json"),
    "manifest that is a folder": lambda out: written(out, "manifest.json/deep"),
    "damaged manifest": damaged,
    "older dpscope's": lambda out: with_changed_manifest(out, dpscope_version="0.1.0"),
    "other schema": lambda out: with_changed_manifest(out, schema_version=0),
    "newer dpscope's": lambda out: with_changed_manifest(out, invented=1),
    "thesis": lambda out: written(out, "thesis.tex"),
    "own report": lambda out: written(out, "report/report.html", "report/figures/scaling.png"),
    "own cells and lock": lambda out: written(
        out, ".lock", "cells/a.csv", "report/a.html", "training/b", "wandb/c"
    ),
    "own trainings": lambda out: written(out, "training/photo.png"),
    "own events": lambda out: written(
        out, "tensorboard/report/events.out.tfevents.1.h.2.0", text="hparams strategy"
    ),
    "own equality": lambda out: written(
        out, "equality/settings.json", "equality.json", "equality/a/log.txt"
    ),
    "similar to a run": lambda out: written(
        out, "cells/x/repeat0/log.txt", "cells/x/repeat0/torchrun/my/thesis.tex"
    ),
    "log without a manifest": lambda out: written(out, "cells/x/repeat0/log.txt"),
    "checkpoint without a manifest": lambda out: written(
        out, "training/x/seed0/checkpoints/best.pt"
    ),
    "page named like a report": lambda out: written(
        out, "report/report.html", text="<html><head><title>dpscope: my notes</title></head></html>"
    ),
    "half of a run": lambda out: written(out, "notes.md", "cells/single-d1-b8/repeat0/result.json"),
    "file": lambda out: written(out.parent, out.name),
}


def run(out: Path, fresh: bool) -> object:
    config = load_config(
        None, {"device": "cpu", "strategy": "single", "batch_size": "8", "model": "resnet8_cifar"}
    )
    return run_sweep(config, out, fresh, QUIET)


def train(out: Path, fresh: bool) -> object:
    config = load_train_config(None, {"device": "cpu", "strategy": "single", "data": "fake"})
    return run_trainings(config, out, fresh, QUIET)


WRITERS: dict[str, Callable[[Path], object]] = {
    "run": lambda out: run(out, fresh=False),
    "run --fresh": lambda out: run(out, fresh=True),
    "train": lambda out: train(out, fresh=False),
    "train --fresh": lambda out: train(out, fresh=True),
    "equal": lambda out: run_equality(equality_settings({"device": "cpu"}), out, QUIET),
    "calibrate": lambda out: check_calibration_place(out, out / "calibration.json"),
}


def refuses(write: Callable[[Path], object], out: Path, message: str | None = None) -> None:
    before = state(out.parent)
    with pytest.raises(DpscopeError, match=message) as raised:
        write(out)
    assert "\n" not in str(raised.value)
    assert state(out.parent) == before


# Other commands may add their files to these, which replaces nothing.
CONCERNED = {
    **dict.fromkeys(
        ("older dpscope's", "other schema", "newer dpscope's", "log without a manifest"), "run"
    ),
    "checkpoint without a manifest": "train",
}
REFUSED = [
    (kind, one) for kind in FOREIGN for one in WRITERS if one.startswith(CONCERNED.get(kind, ""))
]


@pytest.mark.parametrize(("kind", "writer"), REFUSED)
def test_folders_of_other_programs_are_refused_and_unchanged(
    tmp_path: Path, kind: str, writer: str
) -> None:
    FOREIGN[kind](tmp_path / "out")
    refuses(WRITERS[writer], tmp_path / "out")


def trained(out: Path, *names: str) -> Path:
    return written(write_trained(out, [DDP], [record()], 1), *names)


def linked_run(name: str) -> Callable[[Path], Path]:
    return lambda out: link(example(out), name, out.parent / "disk")


IN_THE_WAY: list[tuple[str, Callable[[Path], object], str]] = [
    ("run", linked_run("cells"), "cells is a symbolic link"),
    ("run", linked_run("cells/single-d1-b8"), "single-d1-b8 is a symbolic link"),
    ("run", linked_run("cells/single-d1-b8/repeat0"), "repeat0 is a symbolic link"),
    ("run", linked_run("manifest.json"), "is a symbolic link"),
    (
        "run",
        lambda out: link(written(example(out), "report/a"), "report", out.parent / "b"),
        "report is a symbolic link",
    ),
    (
        "run",
        lambda out: (example(out) / "cells").rename(out / "a") and written(out, "cells"),
        "cells is not a folder",
    ),
    (
        "run",
        lambda out: written(example(out), "report/report.html"),
        "report.html was not written by dpscope",
    ),
    ("run", lambda out: written(example(out), "report/report.html/a"), "report.html is not a file"),
    ("run", lambda out: written(example(out), "report/figures"), "figures is not a folder"),
    (
        "train",
        lambda out: written(
            write_train_json(out, plain_epochs("ddp", 2, 0, [50.0], [1.0])), "calibration.json"
        ),
        "its train.json was not written by dpscope train",
    ),
    (
        "train",
        lambda out: trained(
            out, "tensorboard/training/ddp-d2-b16/seed0/events.out.tfevents.1.h.2.0"
        ),
        "tfevents.1.h.2.0 was not written by dpscope",
    ),
    (
        "train",
        lambda out: link(
            trained(out, "training/ddp-d2-b16/seed0/log.txt"), "training", out.parent / "disk"
        ),
        "training is a symbolic link",
    ),
]


@pytest.mark.parametrize("fresh", ["", " --fresh"])
@pytest.mark.parametrize(("writer", "make", "message"), IN_THE_WAY)
def test_a_file_in_the_way_is_reported_before_any_change(
    tmp_path: Path, writer: str, make: Callable[[Path], object], message: str, fresh: str
) -> None:
    make(tmp_path / "out")
    refuses(WRITERS[writer + fresh], tmp_path / "out", message)


def files(folder: Path) -> list[str]:
    return sorted(
        path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()
    )


def test_a_fresh_run_keeps_the_users_files(tmp_path: Path) -> None:
    out = example(tmp_path / "run")
    assert is_run_folder(out)
    assert [path for path in files(out) if not fits_layout(Path(path))] == ["manifest.json"]
    mine = (
        *("notes.md", "cells/notes.txt", "cells/ddp-d2-b8/repeat0/plot.ipynb", "report/index.html"),
        "cells/mine/repeat0/log.txt",  # of a cell that the manifest does not record
        *(
            "cells/ddp-d2-b8/repeat0/torchrun/my/thesis.tex",
            "cells/ddp-d2-b8/repeat0/.tmp-mine/thesis.tex",
        ),
        "report/figures/a.png",
    )
    half = (
        "cells/ddp-d2-b8/repeat0/traces/.tmp-a1b2c3_4/trace.json",
        "cells/ddp-d2-b8/repeat1/.tmp-result.json-c3d4e5f6",
    )
    # of a killed process
    written(out, *mine, *half, "cells/ddp-d2-b8/repeat1/torchrun/none_x/attempt_0/0/stdout.log")
    assert len(files(out)) > len(mine) + 20
    _remove_measurements(RunFolder(out))
    assert files(out) == sorted(mine)


def test_a_fresh_training_keeps_the_users_files(tmp_path: Path) -> None:
    own = "training/ddp-d2-b16/seed0"
    out = trained(
        tmp_path / "run", f"{own}/epochs.json", f"{own}/checkpoints/last.pt", f"{own}/log.txt"
    )
    written(out, f"tensorboard/{own}/events.out.tfevents.1.host.2.0.dpscope")
    mine = (
        *(f"{own}/checkpoints/epoch3.pt", "training/x/seed0/checkpoints/best.pt", "manifest.json"),
        f"tensorboard/{own}/events.out.tfevents.9.host.2.0",
    )
    written(out, *mine)
    _remove_trainings(TrainFolder(out))
    assert files(out) == sorted(mine)


@pytest.mark.long
def test_a_report_is_rewritten_and_a_foreign_figure_is_not_overwritten(tmp_path: Path) -> None:
    out = example(tmp_path / "run")
    report = make_report(load_run(out))
    # the value of a cached property: one small figure
    vars(report)["figures"] = {"step_split": Figure(figsize=(1, 1))}
    page = write_report(report, ("png", "svg", "pdf"))
    made = files(page.parent)
    assert len(made) == 3 + 3 + 1  # formats of a figure, captions, texts
    assert [path for path in made if not bears_mark(page.parent / path)] == []
    write_report(report, ("png", "svg", "pdf"))
    written(out, "report/figures/step_split.pdf", "report/figures/step_split.png")
    refuses(
        lambda out: write_report(report, ["png"]),
        out,
        r"step_split\.png was not written by dpscope",
    )
    write_report(report, ("svg",))
    assert (page.parent / "figures/step_split.pdf").read_text() == "precious"
    assert {path.suffix for path in (page.parent / "figures").iterdir()} == {
        ".pdf",
        ".png",
        ".svg",
        ".tex",
    }, "what is not dpscope's stays"


@pytest.mark.long
def test_tensorboard_replaces_only_runs_of_dpscope(tmp_path: Path) -> None:
    out = example(tmp_path / "run")
    written(out, "tensorboard/mine/events.out.tfevents.1.host.2.0", "tensorboard/notes.txt")
    report = make_report(load_run(out))
    vars(report)["figures"] = {"step_split": Figure(figsize=(1, 1))}
    export_tensorboard(report)
    first = set(out.rglob("*tfevents*.dpscope"))
    assert {path.parent.name for path in first} == {
        "report",
        "single-d1-b8",
        "dp-host-d2-b8",
        "ddp-d2-b8",
    }
    export_tensorboard(report)
    again = set(out.rglob("*tfevents*"))
    assert len(again) == len(first) + 1, "each is replaced, and the user's stays"
    assert (out / "tensorboard/notes.txt").read_text() == "precious"
    written(out, "tensorboard/ddp-d2-b8/events.out.tfevents.3.host.2.0")
    refuses(
        lambda out: export_tensorboard(report),
        out,
        r"tfevents\.3\.host\.2\.0 was not written by dpscope",
    )


def test_a_calibration_replaces_only_a_calibration(tmp_path: Path) -> None:
    point = CalibrationPoint("all_reduce", 2, 4096, 1024, "float32", (14.0,))
    made = msgspec.structs.replace(
        calibration({"all_reduce": (10.0, 1.0)}), points=(point,), device_names=("cpu",)
    )
    path = tmp_path / "node7.json"
    png = saved(Figure(), "png")
    path.with_suffix(".png").write_bytes(png)
    assert save_calibration(made, path)[1] == path, "dpscope's figure is replaced"
    assert save_calibration(made, path)[1] == path
    path.with_suffix(".png").write_bytes(png.replace(b"dpscope", b"Pixelmator"[:7]))
    refuses(lambda out: save_calibration(made, out), path, r"node7\.png was not written by dpscope")
    path.with_suffix(".png").unlink()
    path.write_text('{"schema_version": 1}')
    refuses(
        lambda out: save_calibration(made, out), path, r"node7\.json was not written by dpscope"
    )
    refuses(
        lambda out: check_calibration_place(out, out),
        path,
        r"node7\.json was not written by dpscope",
    )


@pytest.mark.process
def test_a_folder_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    out = example(tmp_path / "out")
    (out / "cells").chmod(0o555)
    for path in (path for path in out.parents if "pytest-" in str(path)):  # one more under xdist
        path.chmod(0o755)
    code = (
        "import os, sys; from pathlib import Path; from dpscope.profiling.store.ownership import check_place\n"
        "os.getuid() or os.setuid(65534)  # a superuser may write everywhere\n"
        "check_place(Path(sys.argv[1]), 'cells')"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code, str(out)], capture_output=True, text=True, check=False
    )
    assert "cells cannot be written to; change its permissions" in ended.stderr


def test_a_file_of_another_kind_is_not_replaced_by_a_trace_or_a_calibration(tmp_path: Path) -> None:
    """A manifest is dpscope's, but no command that writes a single file may replace it."""
    manifest = tmp_path / "manifest.json"
    shutil.copy(EXAMPLE_RUN / "manifest.json", manifest)
    for is_own in (is_dpscope_trace, is_calibration):
        with pytest.raises(ForeignFileError, match="does not overwrite it"):
            check_overwritable(manifest, is_own)
    path = tmp_path / "calibration.json"
    write_json(path, calibration({"all_reduce": (10.0, 1.0)}))
    check_overwritable(path, is_calibration)
    with pytest.raises(ForeignFileError, match="does not overwrite it"):
        check_overwritable(path, is_dpscope_trace)


def test_copies_of_traces_without_dpscopes_events_are_foreign(tmp_path: Path) -> None:
    (tmp_path / "0_0.pt.trace.json.gz").write_bytes(b"precious")
    with pytest.raises(
        ForeignFileError, match=r"0_0\.pt\.trace\.json\.gz was not written by dpscope"
    ):
        check_events(tmp_path)
