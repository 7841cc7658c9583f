"""Runs a command on a healthy virtual node, as `make gpu VIRTUAL=4` does: python -m
tests.virtual_gpu DEVICES COMMAND...
"""

import subprocess
import sys
import tempfile
from pathlib import Path

from tests.virtual_gpu.build import build, find_wheels, why_not
from tests.virtual_gpu.node import LIGHT_TORCHRUN, healthy_node, planted


def main(count: int, command: list[str]) -> int:
    """The command's exit status; without the means for a virtual node the reason is printed
    instead.
    """
    wheels = find_wheels()
    reason = why_not(wheels)
    if reason or wheels is None:
        sys.exit(reason)
    libraries = build(wheels)
    with (
        tempfile.TemporaryDirectory(prefix="dpscope-node-") as folder,
        planted(healthy_node(count), libraries, Path(folder)) as node,
    ):
        return subprocess.run(
            command, env={**node.environment, **LIGHT_TORCHRUN}, check=False
        ).returncode


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))
