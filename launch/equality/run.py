"""Runs the jobs of `dpscope equal` in turn; the analysis compares their records. Imports no torch."""

from pathlib import Path

from rich.console import Console
from rich.text import Text

from dpscope.launch.jobs.attended_job import THIS_HOST, JobStarter, SeveralNodesJob, attend_job, check_done
from dpscope.launch.jobs.job_queue import held
from dpscope.launch.jobs.out_folder import check_equality_place
from dpscope.launch.jobs.stop_request import StopRequest
from dpscope.launch.jobs.torchrun import torchrun_prefix
from dpscope.launch.workload.data_files import download_data
from dpscope.profiling.records.equality import EQUALITY_FOLDER, EQUALITY_NAME, EqualityJob, EqualitySettings
from dpscope.profiling.store.files import read_json_if_there, write_json
from dpscope.profiling.store.folders import SETTINGS_NAME, JobFolder
from dpscope.profiling.store.layout import remove_empty_folders, remove_written


def run_equality(settings: EqualitySettings, out: Path, console: Console, starter: JobStarter = THIS_HOST) -> None:
    """Train under every strategy and save each process's records in `out`, in place of an earlier comparison.

    The jobs' processes end with this call whatever happens; signals end it early. Raises DpscopeError with the cause in
    one line when a job fails, passes its time limit or is stopped, or when `out` holds something else.
    """
    check_equality_place(out)

    with held(out, console, starter):
        _clear(out)
        write_json(out / EQUALITY_FOLDER / SETTINGS_NAME, settings)
        download_data(settings.config.workload)
        stop = StopRequest()
        with stop.listening():
            for number, job in enumerate(settings.jobs, start=1):
                title = f"[{number}/{len(settings.jobs)}] {job.cell.name}"
                _run_job(settings, job, out, title, stop, console, starter)


def _clear(out: Path) -> None:
    """Remove the files of the comparison in the stored settings."""
    (out / EQUALITY_NAME).unlink(missing_ok=True)
    if (earlier := read_json_if_there(out / EQUALITY_FOLDER / SETTINGS_NAME, EqualitySettings)) is not None:
        for job in earlier.jobs:
            remove_written(out, job.folder(out))
        remove_empty_folders(out / EQUALITY_FOLDER)


def _run_job(
    settings: EqualitySettings,
    job: EqualityJob,
    out: Path,
    title: str,
    stop: StopRequest,
    console: Console,
    starter: JobStarter,
) -> None:
    started = _started(settings, job, out)
    timeout_s = settings.config.timeout_s
    outcome = attend_job(started.command, started.folder, started.threads, timeout_s, title, stop, console, starter)
    check_done(outcome, f"{job.cell.name} failed, nothing is compared", stop, console)
    console.print(Text(f"{title}: done"), soft_wrap=True)


def planned_comparisons(out: Path) -> list[SeveralNodesJob]:
    """The jobs of the comparison whose settings are in `out`."""
    settings = read_json_if_there(out / EQUALITY_FOLDER / SETTINGS_NAME, EqualitySettings)
    return [] if settings is None else [_started(settings, job, out) for job in settings.jobs]


def _started(settings: EqualitySettings, job: EqualityJob, out: Path) -> SeveralNodesJob:
    folder = JobFolder(job.folder(out))
    command = (
        *torchrun_prefix(job.cell.processes, folder, nodes=job.cell.nodes),
        *("-m", "dpscope.launch.equality.worker", str(out), job.cell.name),
    )
    return SeveralNodesJob(job.cell.name, command, folder, settings.threads_per_process, in_run=False)
