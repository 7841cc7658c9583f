"""The machine: doctor's own checks, what the environment says of it, NVML recorded and replayed."""

import os

from dpscope.launch.acceptance.verdict import CheckVerdict, equals, skipped
from dpscope.launch.acceptance.workplace import Workplace, last_line
from dpscope.profiling.machine.environment import collect_environment, device_states
from dpscope.profiling.machine.interconnect import interconnect
from dpscope.profiling.machine.nvml import open_nvml
from dpscope.profiling.machine.nvml_record import NvmlRecorder, ReplayedNvml


def machine(place: Workplace) -> list[CheckVerdict]:
    """`dpscope doctor` ends well, the environment names every GPU, and NVML answers the same when it is replayed."""
    ended = place.dpscope("doctor")
    (place.folder / "doctor.txt").write_text(ended.stdout)
    environment = collect_environment(open_nvml(), on_gpus=place.kind == "cuda")
    return [
        equals("a.doctor", f"status_{ended.returncode}", "status_0", last_line(ended.stderr or ended.stdout)),
        equals(
            "a.environment",
            len(environment.accelerators),
            place.gpus,
            "GPUs that the environment records, and GPUs that torch sees",
        ),
        replayed(place),
    ]


def replayed(place: Workplace) -> CheckVerdict:
    """States and links of the GPUs, asked of NVML and of its record."""
    nvml = open_nvml()
    if nvml is None:
        return skipped("a.nvml_replayed", "no NVML")
    recorder = NvmlRecorder(nvml)
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    asked = (device_states(recorder, (os.getpid(),), visible), interconnect(recorder))
    path = place.folder / "nvml.json"
    path.write_text(recorder.to_json())
    replay = ReplayedNvml(path)
    again = (device_states(replay, (os.getpid(),), visible), interconnect(replay))
    return equals("a.nvml_replayed", "equal" if again == asked else "different", "equal", str(path))
