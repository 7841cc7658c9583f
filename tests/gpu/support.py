"""The support bundle of the tests on GPUs: `python -m tests.gpu.support FOLDER` packs what a bug
report needs into one file.

In it are `dpscope bundle` of every run, without names of hosts and users, the verdicts, doctor's
answers and the NVML record.
"""

import subprocess
import sys
import zipfile
from pathlib import Path

NAME = "support.zip"
FILES = ("verdicts.jsonl", "doctor.txt", "nvml.json")


def pack(folder: Path) -> Path:
    """The bundle of a folder that `make gpu` wrote."""
    path = folder / NAME
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as bundle:
        for file in (folder / name for name in FILES if (folder / name).exists()):
            bundle.write(file, file.name)
        for manifest in sorted(folder.glob("*/manifest.json")):
            run = manifest.parent
            packed = folder / f"{run.name}-bundle.zip"
            command = [
                sys.executable,
                "-m",
                "dpscope.launch.cli",
                "bundle",
                str(run),
                "--output",
                str(packed),
            ]
            ended = subprocess.run(
                command, capture_output=True, text=True, timeout=300, check=False
            )
            if ended.returncode == 0:
                bundle.write(packed, packed.name)
                packed.unlink()
            else:
                bundle.writestr(f"{run.name}-not-bundled.txt", ended.stderr)
    return path


if __name__ == "__main__":
    sys.stdout.write(f"Support bundle: {pack(Path(sys.argv[1]))}\n")
