"""Runs a command on a healthy virtual node, as `make gpu VIRTUAL=4` does: python -m tests.virtual_gpu DEVICES COMMAND..."""

import subprocess
import sys
import tempfile
from pathlib import Path

from tests.virtual_gpu.build import build, find_wheels, why_not
from tests.virtual_gpu.node import LIGHT_TORCHRUN, Device, Node, planted


def main(count: int, command: list[str]) -> int:
    """The command's exit status; without the means for a virtual node the reason is printed instead."""
    wheels = find_wheels()
    reason = why_not(wheels)
    if reason or wheels is None:
        sys.exit(reason)
    with tempfile.TemporaryDirectory(prefix="dpscope-node-") as folder:
        node = Node(devices=(Device(),) * count)
        with planted(node, build(wheels), Path(folder)) as there:
            return subprocess.run(command, env={**there.environment, **LIGHT_TORCHRUN}, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))
