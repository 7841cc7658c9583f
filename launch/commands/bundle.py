"""`dpscope bundle`: a run in one file, for someone else."""

from pathlib import Path

from dpscope.launch.commands.command import Help, Idle, argument, open_console, option
from dpscope.profiling.store.errors import DpscopeError

HELP = Help(examples=("runs/mine",))

IDLE = (Idle("output", "list_only", "--list writes nothing"),)


def bundle(
    run: Path = argument("a run folder"),
    output: Path | None = option(
        "the file to write, *.zip; default: RUN-bundle.zip, here", "--output", "-o"
    ),
    list_only: bool = option("list what it would hold; write nothing", "--list", default=False),
) -> None:
    path = output or Path(f"{run.absolute().name}-bundle.zip")
    if path.suffix != ".zip":
        raise DpscopeError(f"{path} does not end in .zip, which the bundle is; name it {path}.zip")
    if not path.absolute().parent.is_dir():
        raise DpscopeError(
            f"{path.parent} does not exist or is not a folder; create it, or choose another place with -o"
        )
    from dpscope.analysis.bundle.write import collect, write
    from dpscope.analysis.output.run_screen import findings_of
    from dpscope.analysis.text.terminal import print_table, progress
    from dpscope.analysis.traces.ranks.readers import holds_files
    from dpscope.profiling.records.finding import Finding
    from dpscope.profiling.store.folders import CELLS_NAME, RunFolder, is_run_folder
    from dpscope.profiling.store.ownership import check_overwritable
    from dpscope.profiling.store.training_folders import holds_epochs

    other = is_run_folder(run) or holds_epochs(run) or (run / CELLS_NAME).is_dir()
    if not other and (run.is_file() or holds_files(run)):
        raise DpscopeError(
            f"{run} holds traces and no run; dpscope reduce {run} -o FOLDER makes them small enough to send"
        )
    RunFolder(run).manifest()  # a wrong folder is reported before anything is queried
    if not list_only:
        check_overwritable(path)
    notes = _machine_notes()
    findings: list[Finding] = []
    try:
        findings += findings_of(run)
    except DpscopeError as error:
        notes["analysis"] = {"failed": str(error)}
    with progress("Packing traces") as update:
        packed = collect(run, findings, notes, progress=update)
    console = open_console()
    print_table(console, packed.listing())
    if list_only:
        return
    with progress(f"Writing {path}"):
        write(packed, path)
    size_mb = path.stat().st_size / 1e6
    console.print(
        f"\nWritten: {path} ({size_mb:.1f} MB)\nTo read it: unzip {path}, then dpscope analyze {packed.name}",
        highlight=False,
        soft_wrap=True,
    )


def _machine_notes() -> dict[str, object]:
    """What doctor and NVML report about this machine now, which may not be the one that
    measured.
    """
    import json
    import socket

    from dpscope.launch.commands.doctor import check_records, run_doctor
    from dpscope.profiling.machine.environment import usable_device_states
    from dpscope.profiling.machine.interconnect import interconnect
    from dpscope.profiling.machine.nvml import NvmlRecorder, driver_version, open_nvml

    checks = check_records(run_doctor())
    notes: dict[str, object] = {"doctor": {"hostname": socket.gethostname(), "checks": checks}}
    if (nvml := open_nvml()) is not None:
        recorder = NvmlRecorder(nvml)
        driver_version(recorder)
        interconnect(recorder, [state.uuid or "" for state in usable_device_states(recorder, None)])
        notes["nvml"] = json.loads(recorder.to_json())
    return notes
