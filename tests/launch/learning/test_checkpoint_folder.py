"""Files of checkpoints: complete, with checksums, and read back to the same state."""

import os
import zipfile
from pathlib import Path

import msgspec
import pytest
import torch

from dpscope.launch.learning.checkpoints import CheckpointFolder, verify
from dpscope.launch.learning.train_state import read_checkpoint
from dpscope.profiling.records.run import Cell
from dpscope.profiling.store.errors import DpscopeError
from tests.helpers.trainings import checkpoint

CELL = Cell(strategy="ddp", devices=2, batch_size=4)


def save(folder: CheckpointFolder, epochs: int, best: bool = False) -> None:
    description = checkpoint(CELL, epochs=epochs)
    content = {
        "weights": torch.arange(300.0),
        "epochs": epochs,
        "description": msgspec.to_builtins(description),
    }
    folder.write(description, lambda path: torch.save(content, path), best)


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


def test_last_and_best(folder: CheckpointFolder) -> None:
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

    def fail(path: Path) -> None:
        path.write_bytes(b"PK\x03\x04 and no more")
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        folder.write(checkpoint(CELL), fail, best=True)
    assert held(folder) == {"last.pt": 1}


def refused(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(DpscopeError, match=rf"{path.name} is .*remove it, or give --fresh"):
        read_checkpoint(path, verify(path))


def test_every_torn_or_changed_checkpoint_is_refused(folder: CheckpointFolder) -> None:
    """Of a changed byte either nothing depends on it (as dates in the archive), or it is noticed."""
    save(folder, 1)
    whole, expected = folder.last.read_bytes(), torch.load(folder.last, weights_only=True)
    for length in (0, 3, 22, *range(100, len(whole), 211), *range(len(whole) - 30, len(whole))):
        refused(folder.last, whole[:length])
    places = (*range(0, len(whole), 37), *range(len(whole) - 1500, len(whole), 7))
    noticed = 0
    for place in places:
        folder.last.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        try:
            content = read_checkpoint(folder.last, verify(folder.last))
        except (DpscopeError, RuntimeError):
            noticed += 1
        else:
            assert content["description"] == expected["description"]
            assert torch.equal(content["weights"], expected["weights"])
    assert noticed > len(places) / 3
    folder.last.write_bytes(whole)
    assert verify(folder.last).epochs == 1


def test_other_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "theirs.pt"
    torch.save({"state_dict": torch.nn.Linear(2, 2).state_dict()}, path)
    for content in (path.read_bytes(), b"epoch,loss\n1,2\n", bytes(4096)):
        refused(path, content)
    with pytest.raises(DpscopeError, match=r"the checkpoint: .*absent\.pt does not exist"):
        verify(tmp_path / "absent.pt")
    with pytest.raises(DpscopeError, match="Is a directory"):
        verify(tmp_path)


def test_another_versions_checkpoint_is_refused(folder: CheckpointFolder) -> None:
    newer = checkpoint(CELL, format_version=2)
    folder.write(newer, lambda path: torch.save({}, path), best=False)
    with pytest.raises(DpscopeError, match="no checkpoint of this version of dpscope"):
        verify(folder.last)
