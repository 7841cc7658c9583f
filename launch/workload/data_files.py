"""Data sets and names of dpscope's models: everything that is known without reading a data set.
Imports no torch.
"""

import importlib.metadata
import os
import tempfile
from pathlib import Path

from dpscope.profiling.records.config import Workload
from dpscope.profiling.store.errors import DpscopeError

CIFAR_RESNET = "resnet18_cifar"
SMALL_RESNET = "resnet8_cifar"
GPTS = ("gpt_5m", "gpt_30m", "gpt_124m")
OWN_MODELS = (CIFAR_RESNET, SMALL_RESNET, *GPTS)  # the names that need no torch to be known

TRAINING_SAMPLES = {"cifar10": 50_000, "digits": 1_440}
"""Samples of an epoch, for data sets with a fixed number."""

IMAGE_SHAPES = {"cifar10": (3, 32, 32), "digits": (3, 32, 32)}
"""Shape of a sample, for data sets with images of a fixed size; other images have the size that the
model needs.
"""

CIFAR_MEAN = (0.4914, 0.4822, 0.4465)
CIFAR_DEVIATION = (0.2023, 0.1994, 0.2010)
"""Used by nearly all studies on CIFAR-10. The deviations are means over the images of each image's
deviation.
"""

_CIFAR_FOLDER = "cifar-10-batches-py"


def check_data(workload: Workload) -> None:
    """Raise DpscopeError when the data a run needs is not there."""
    if workload.data == "digits":
        digits_file()
    folder = Path(workload.data_dir)
    if (
        workload.data == "cifar10"
        and not workload.download
        and not (folder / _CIFAR_FOLDER).is_dir()
    ):
        raise DpscopeError(
            f"--data cifar10: {folder / _CIFAR_FOLDER} does not exist; pass --download, or name the folder that "
            f"contains {_CIFAR_FOLDER} with --data-dir"
        )


def normalisation(workload: Workload) -> str | None:
    """The mean and deviation by which images are normalised, per channel, as text; None for other
    data than CIFAR-10.
    """
    if workload.data != "cifar10":
        return None
    mean, deviation = (
        "/".join(f"{value:.4f}" for value in values) for values in (CIFAR_MEAN, CIFAR_DEVIATION)
    )
    return f"mean {mean}, deviation {deviation}"


def digits_file() -> Path:
    """scikit-learn's file of digits: gzipped CSV, 64 pixels (0 to 16) and the digit; raises
    DpscopeError if missing.
    """
    try:
        package = importlib.metadata.distribution("scikit-learn")
    except importlib.metadata.PackageNotFoundError as error:
        raise DpscopeError(
            "--data digits: scikit-learn is not installed; pip install 'dpscope[digits]'"
        ) from error
    path = Path(str(package.locate_file("sklearn/datasets/data/digits.csv.gz")))
    if not path.is_file():
        raise DpscopeError(
            f"--data digits: scikit-learn {package.version} has no {path}; install another version"
        )
    return path


def download_data(workload: Workload) -> None:
    """Download CIFAR-10 if requested and missing. Imports torch only then.

    Raises DpscopeError if that fails, or if another file has the name of one of CIFAR-10's:
    torchvision would overwrite it.
    """
    if workload.data != "cifar10" or not workload.download:
        return
    from torchvision.datasets import CIFAR10
    from torchvision.datasets.utils import check_integrity

    folder = Path(workload.data_dir)
    parts = [
        *CIFAR10.train_list,
        *CIFAR10.test_list,
        (CIFAR10.meta["filename"], CIFAR10.meta["md5"]),
    ]
    files = [(folder / CIFAR10.base_folder / name, md5) for name, md5 in parts]
    if all(check_integrity(path, md5) for path, md5 in files):
        return
    for path, md5 in [*files, (folder / CIFAR10.filename, CIFAR10.tgz_md5)]:
        if os.path.lexists(path) and not check_integrity(path, md5):
            raise DpscopeError(
                f"--download: {path} is not CIFAR-10's {path.name}, or is incomplete, and is not overwritten; "
                "move it, or name another folder with --data-dir"
            )
    try:
        _download_whole(folder)
    except (OSError, RuntimeError) as error:
        raise DpscopeError(
            f"--download: CIFAR-10 could not be downloaded to {workload.data_dir} ({error}); "
            "download cifar-10-python.tar.gz elsewhere and unpack it there"
        ) from error


def _download_whole(folder: Path) -> None:
    """CIFAR-10's archive downloaded, unless it is there, and those of its files that are missing:
    all or none.
    """
    from torchvision.datasets import CIFAR10

    folder.mkdir(parents=True, exist_ok=True)
    archive = folder / CIFAR10.filename
    with tempfile.TemporaryDirectory(prefix=".tmp-cifar10-", dir=folder) as name:
        fresh = Path(name)
        if archive.exists():
            (fresh / archive.name).symlink_to(archive.resolve())
        CIFAR10(fresh, train=True, download=True)
        unpacked = folder / CIFAR10.base_folder
        if not unpacked.exists():
            (fresh / unpacked.name).rename(unpacked)
            return
        for path in (fresh / unpacked.name).iterdir():
            if not (unpacked / path.name).exists():
                path.rename(unpacked / path.name)
