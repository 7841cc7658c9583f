"""The versions that `make demo` and `make test` install: names and versions only, for pip's
--constraint.

`python .ci/constraints.py installed` prints every package of this Python, for constraints.txt.
`PYTHON .ci/constraints.py keep FILE` prints FILE without the packages that PYTHON already has, and
pins PYTHON's torch.
"""

import re
import sys
from importlib.metadata import distributions
from pathlib import Path

NEVER_PINNED = ("dpscope", "pip", "setuptools", "wheel")
# their names and versions differ between platforms
PINNED_BY_TORCH = re.compile(r"(nvidia-(?!ml-py)|cuda-|triton)")
KEPT = ("torch", "torchvision")


def installed() -> dict[str, str]:
    """Normalised name to version of every installed distribution, without the local part of a
    version ("+cu130").
    """
    found = {re.sub(r"[-_.]+", "-", each.name).lower(): each.version for each in distributions()}
    return {name: found[name].split("+")[0] for name in sorted(found) if is_pinned(name)}


def is_pinned(name: str) -> bool:
    return name not in NEVER_PINNED and not PINNED_BY_TORCH.match(name)


def without_installed(lines: list[str]) -> list[str]:
    """The constraints on packages that are not installed here, and the installed torch and
    torchvision as they are.
    """
    here = installed()
    exact = {each.name.lower(): each.version for each in distributions()}
    free = [line for line in lines if line.partition("==")[0] not in here]
    return free + [f"{name}=={exact[name]}" for name in KEPT if name in here]


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["installed"]:
            printed = [f"{name}=={version}" for name, version in installed().items()]
        case ["keep", path]:
            printed = without_installed(Path(path).read_text().splitlines())
        case _:
            sys.exit(__doc__)
    sys.stdout.write("".join(f"{line}\n" for line in printed))
