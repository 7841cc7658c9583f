"""Where data sets lie and how many samples they have, told without reading them. Imports no torch."""

import importlib.metadata
import os
import tempfile
from pathlib import Path

from dpscope.profiling.records.config import Workload
from dpscope.profiling.store.errors import DpscopeError

TRAINING_SAMPLES = {"cifar10": 50_000, "digits": 1_440}
"""Samples of an epoch, of the data sets that have a number of their own."""

IMAGE_SHAPES = {"cifar10": (3, 32, 32), "digits": (3, 32, 32)}
"""A sample, of the data sets whose images have a size of their own; the others are as large as the model asks."""

CIFAR_MEAN = (0.4914, 0.4822, 0.4465)
CIFAR_DEVIATION = (0.2023, 0.1994, 0.2010)
"""What nearly all studies on CIFAR-10 normalise by: the deviations are means over images of each image's own."""

_CIFAR_FOLDER = "cifar-10-batches-py"


def check_data(workload: Workload) -> None:
    """Raise DpscopeError when the data a run needs is not there."""
    if workload.data == "digits":
        digits_file()
    folder = Path(workload.data_dir)
    if workload.data == "cifar10" and not workload.download and not (folder / _CIFAR_FOLDER).is_dir():
        raise DpscopeError(
            f"--data cifar10: {folder / _CIFAR_FOLDER} is not there; pass --download, or name the folder that "
            f"holds {_CIFAR_FOLDER} with --data-dir"
        )


def normalisation(workload: Workload) -> str | None:
    """By what a data set's images are normalised, channel by channel, in words; None where they are not told."""
    if workload.data != "cifar10":
        return None
    mean, deviation = ("/".join(f"{value:.4f}" for value in values) for values in (CIFAR_MEAN, CIFAR_DEVIATION))
    return f"mean {mean}, deviation {deviation}"


def digits_file() -> Path:
    """scikit-learn's file of digits: gzipped CSV, 64 pixels (0 to 16) and the digit; raises DpscopeError without it."""
    try:
        package = importlib.metadata.distribution("scikit-learn")
    except importlib.metadata.PackageNotFoundError as error:
        raise DpscopeError("--data digits: scikit-learn is absent; pip install 'dpscope[digits]'") from error
    path = Path(str(package.locate_file("sklearn/datasets/data/digits.csv.gz")))
    if not path.is_file():
        raise DpscopeError(f"--data digits: scikit-learn {package.version} has no {path}; install another version")
    return path


def download_data(workload: Workload) -> None:
    """Fetch CIFAR-10 where it is asked for and absent. Imports torch only then.

    Raises DpscopeError when that fails, and where a file that is not CIFAR-10's has the name of one: torchvision overwrites it.
    """
    if workload.data != "cifar10" or not workload.download:
        return
    from torchvision.datasets import CIFAR10
    from torchvision.datasets.utils import check_integrity

    folder = Path(workload.data_dir)
    parts = [*CIFAR10.train_list, *CIFAR10.test_list, (CIFAR10.meta["filename"], CIFAR10.meta["md5"])]
    files = [(folder / CIFAR10.base_folder / name, md5) for name, md5 in parts]
    if all(check_integrity(path, md5) for path, md5 in files):
        return
    for path, md5 in [*files, (folder / CIFAR10.filename, CIFAR10.tgz_md5)]:
        if os.path.lexists(path) and not check_integrity(path, md5):
            raise DpscopeError(
                f"--download: {path} is not CIFAR-10's {path.name}, or only a part of it, and is not overwritten; "
                "move it away, or name another folder with --data-dir"
            )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".tmp-cifar10-", dir=folder) as name:  # whole or not at all
            fresh = Path(name)
            if (folder / CIFAR10.filename).exists():
                (fresh / CIFAR10.filename).symlink_to((folder / CIFAR10.filename).resolve())
            CIFAR10(fresh, train=True, download=True)
            _move(fresh / CIFAR10.base_folder, folder / CIFAR10.base_folder)
    except (OSError, RuntimeError) as error:
        raise DpscopeError(
            f"--download: CIFAR-10 could not be fetched into {workload.data_dir} ({error}); "
            "fetch cifar-10-python.tar.gz elsewhere and unpack it there"
        ) from error


def _move(fresh: Path, place: Path) -> None:
    """A folder to its place: at once, or where some of it is there already, file by file what is not."""
    if not place.exists():
        fresh.rename(place)
        return
    for path in fresh.iterdir():
        if not (place / path.name).exists():
            path.rename(place / path.name)
