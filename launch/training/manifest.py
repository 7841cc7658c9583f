"""Makes and extends the manifest of trainings. Imports torch only when asked to make one."""

import importlib.metadata
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from dpscope.launch.jobs.starting import THIS_HOST, JobStarter
from dpscope.launch.planning.manifest import check_same_machine, hosts_findings
from dpscope.launch.training.planned_jobs import TrainDescription
from dpscope.profiling.machine.environment import collect_environment, machine_findings
from dpscope.profiling.machine.nvml import open_nvml
from dpscope.profiling.records.training import TRAIN_SCHEMA_VERSION, TrainManifest
from dpscope.profiling.store.files import write_json
from dpscope.profiling.store.training_folders import TrainFolder, is_train_folder


def open_train_manifest(
    folder: TrainFolder, description: TrainDescription, starter: JobStarter = THIS_HOST
) -> TrainManifest:
    """The folder's manifest, written if this is the beginning, or adds seeds or epochs to trainings that are there.

    Raises DpscopeError when they were begun on another machine.
    """
    manifest = _new(description, starter)
    if is_train_folder(folder.path):
        had = folder.manifest()
        check_same_machine(folder.path, had.environment, manifest.environment)
        seeds = tuple(dict.fromkeys((*had.config.seeds, *manifest.config.seeds)))
        manifest = msgspec.structs.replace(
            had,
            config=msgspec.structs.replace(manifest.config, seeds=seeds),
            findings=manifest.findings,
            hosts=manifest.hosts,
        )
    write_json(folder.manifest_path, manifest)
    return manifest


def _new(description: TrainDescription, starter: JobStarter) -> TrainManifest:
    on_gpus = description.device_type == "cuda"
    environment = collect_environment(open_nvml() if on_gpus else None, on_gpus, code=Path.cwd())
    hosts = starter.hosts(environment)
    return TrainManifest(
        schema_version=TRAIN_SCHEMA_VERSION,
        dpscope_version=importlib.metadata.version("dpscope"),
        created_at=datetime.now(UTC).isoformat(timespec="seconds"),
        config=description.config,
        device_type=description.device_type,
        threads_per_process=description.threads_per_process,
        environment=environment,
        plan=description.plan,
        findings=(
            *machine_findings(environment, description.device_type, description.config.matrix.most_on_a_node),
            *hosts_findings(environment, hosts),
            *description.findings,
        ),
        hosts=hosts,
    )
