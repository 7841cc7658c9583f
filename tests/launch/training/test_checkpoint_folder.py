"""Files of checkpoints: complete, with checksums, and read back to the same state."""

import os
import random
import zipfile
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pytest
import torch

from dpscope.launch.training.checkpoint_state import rng_states, set_rng_states
from dpscope.launch.training.checkpoints import CheckpointFolder, verify, write_sealed
from dpscope.profiling.records.run import Cell
from dpscope.profiling.store.errors import DpscopeError
from tests.helpers.trainings import checkpoint

CPU = torch.device("cpu")
CELL = Cell(strategy="ddp", devices=2, batch_size=4)


def save(folder: CheckpointFolder, epochs: int, best: bool = False) -> None:
    content = {"weights": torch.arange(300.0), "epochs": epochs}
    folder.write(checkpoint(CELL, epochs=epochs), lambda file: torch.save(content, file), best)


@pytest.fixture
def folder(tmp_path: Path) -> CheckpointFolder:
    return CheckpointFolder(tmp_path)


def test_torch_reads_it_as_weights_only_and_its_description_needs_no_torch(
    folder: CheckpointFolder,
) -> None:
    save(folder, 3)
    content = torch.load(folder.last, weights_only=True)
    assert content["epochs"] == 3
    assert torch.equal(content["weights"], torch.arange(300.0))
    assert verify(folder.last) == checkpoint(CELL, epochs=3)
    assert zipfile.ZipFile(folder.last).testzip() is None


def held(folder: CheckpointFolder) -> dict[str, int]:
    """The finished epochs of each checkpoint."""
    return {path.name: verify(path).epochs for path in folder.path.iterdir()}


def test_last_previous_and_best(folder: CheckpointFolder) -> None:
    for epochs, best in ((1, True), (2, True), (3, False)):
        save(folder, epochs, best)
    assert held(folder) == {"last.pt": 3, "best.pt": 2}


def test_without_links_names_are_copies(
    folder: CheckpointFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_links(source: Path, name: Path) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", no_links)
    save(folder, 1, best=True)
    save(folder, 2)
    assert held(folder) == {"last.pt": 2, "best.pt": 1}
    assert folder.last.stat().st_nlink == 1


def test_a_write_that_fails_leaves_the_last_one(folder: CheckpointFolder) -> None:
    save(folder, 1)

    def fail(file: BinaryIO) -> None:
        file.write(b"PK\x03\x04 and no more")
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        folder.write(checkpoint(CELL), fail, best=True)
    assert held(folder) == {"last.pt": 1}


def refused(path: Path, content: bytes, message: str) -> None:
    path.write_bytes(content)
    with pytest.raises(
        DpscopeError, match=rf"{path.name} is {message}.*remove it, or give --fresh"
    ):
        verify(path)


def test_every_torn_or_changed_checkpoint_is_refused(folder: CheckpointFolder) -> None:
    save(folder, 1)
    whole = folder.last.read_bytes()
    for length in (0, 3, 22, *range(100, len(whole), 211), *range(len(whole) - 30, len(whole))):
        refused(folder.last, whole[:length], "(damaged or|no checkpoint of dpscope's, or is) torn")
    refused(
        folder.last, whole + b"more", "damaged or torn: its bytes are not those that were written"
    )
    for place in (
        *random.Random(0).sample(range(len(whole)), 300),
        *range(len(whole) - 1500, len(whole), 7),
    ):
        refused(
            folder.last,
            whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :],
            "(damaged|no checkpoint)",
        )
    folder.last.write_bytes(whole)
    assert verify(folder.last).epochs == 1


def test_other_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "theirs.pt"
    torch.save({"state_dict": torch.nn.Linear(2, 2).state_dict()}, path)
    mark = b"dpscope checkpoint\n"
    for content in (path.read_bytes(), b"epoch,loss\n1,2\n", bytes(4096), mark, b"\x13" + mark):
        refused(path, content, "(damaged|no checkpoint of dpscope's)")
    with pytest.raises(DpscopeError, match=r"the checkpoint: .*absent\.pt does not exist"):
        verify(tmp_path / "absent.pt")
    with pytest.raises(DpscopeError, match="Is a directory"):
        verify(tmp_path)


def test_another_versions_checkpoint_names_the_version(folder: CheckpointFolder) -> None:
    newer = checkpoint(CELL, format_version=3, dpscope_version="9.1")
    write_sealed(folder.last, newer, lambda file: torch.save({}, file))
    with pytest.raises(
        DpscopeError, match=r"written by dpscope 9\.1 \(it has format 3, this dpscope reads 2\)"
    ):
        verify(folder.last)


def test_random_number_generators_continue(tmp_path: Path) -> None:
    def seed(value: int) -> None:
        random.seed(value)
        np.random.seed(value)
        torch.manual_seed(value)

    def draw() -> tuple[float, float, float]:
        return random.gauss(0, 1), float(np.random.standard_normal()), float(torch.rand(1))

    seed(1)
    draw()  # leaves a second value of random.gauss behind, part of the state
    torch.save(rng_states([CPU]), tmp_path / "rng.pt")
    expected = [draw() for _ in range(3)]
    seed(9)
    assert draw() != expected[0]
    set_rng_states(torch.load(tmp_path / "rng.pt", weights_only=True), [CPU])
    assert [draw() for _ in range(3)] == expected
