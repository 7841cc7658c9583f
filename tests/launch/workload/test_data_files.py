"""`--download`, which never overwrites other files, with a small CIFAR-10 of two files in place of
the real one.
"""

import hashlib
import pickle
import shutil
import tarfile
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import numpy as np
import pytest
from torchvision.datasets import CIFAR10

from dpscope.launch.planning.run_config import load_config
from dpscope.launch.workload.data_files import download_data
from dpscope.profiling.store.errors import DpscopeError

PARTS = {
    "data_batch_1": pickle.dumps({"data": np.zeros((1, 3072), np.uint8), "labels": [7]}),
    "batches.meta": pickle.dumps({"label_names": ["cat"]}),
}


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None: ...


def md5(data: bytes) -> str:
    return hashlib.md5(data).hexdigest()


@pytest.fixture
def archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An archive accepted as CIFAR-10's; downloads fail."""
    source = tmp_path / "source" / "cifar-10-batches-py"
    source.mkdir(parents=True)
    for name, data in PARTS.items():
        (source / name).write_bytes(data)
    path = tmp_path / "source" / str(CIFAR10.filename)
    with tarfile.open(path, "w:gz") as tar:
        tar.add(source, source.name)
    monkeypatch.setattr(CIFAR10, "url", "http://127.0.0.1:9/")
    monkeypatch.setattr(CIFAR10, "tgz_md5", md5(path.read_bytes()))
    monkeypatch.setattr(CIFAR10, "train_list", [["data_batch_1", md5(PARTS["data_batch_1"])]])
    monkeypatch.setattr(CIFAR10, "test_list", [])
    meta = {"filename": "batches.meta", "key": "label_names", "md5": md5(PARTS["batches.meta"])}
    monkeypatch.setattr(CIFAR10, "meta", meta)
    return path


def download(folder: Path) -> None:
    download_data(
        load_config(None, {"data": "cifar10", "data_dir": str(folder), "download": True}).workload
    )


def files_in(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (folder / "cifar-10-batches-py").iterdir()}


def test_an_existing_archive_is_unpacked_and_complete_files_are_kept(
    tmp_path: Path, archive: Path
) -> None:
    shutil.copy(archive, tmp_path)
    download(tmp_path)
    assert files_in(tmp_path) == PARTS
    (tmp_path / CIFAR10.filename).write_text("a thesis")
    download(tmp_path)
    assert (tmp_path / CIFAR10.filename).read_text() == "a thesis"
    (tmp_path / CIFAR10.filename).unlink()
    shutil.copy(archive, tmp_path)
    (tmp_path / "cifar-10-batches-py" / "data_batch_1").unlink()
    (tmp_path / "cifar-10-batches-py" / "notes.txt").write_text("mine")
    download(tmp_path)  # what is missing is added
    assert files_in(tmp_path) == {**PARTS, "notes.txt": b"mine"}


@pytest.mark.parametrize("name", [CIFAR10.filename, "cifar-10-batches-py/batches.meta"])
@pytest.mark.usefixtures("archive")
def test_another_file_is_not_overwritten(tmp_path: Path, name: str) -> None:
    theirs = tmp_path / "data" / name
    theirs.parent.mkdir(parents=True)
    theirs.write_text("a thesis")
    with pytest.raises(DpscopeError, match=r"is not overwritten; move it, or") as raised:
        download(tmp_path / "data")
    assert str(raised.value).startswith(f"--download: {theirs} is not CIFAR-10's {theirs.name}")
    assert [path for path in (tmp_path / "data").rglob("*") if path.is_file()] == [theirs]
    assert theirs.read_text() == "a thesis"


def test_a_download_is_complete_or_leaves_nothing(
    tmp_path: Path, archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (archive.parent / "half").write_bytes(archive.read_bytes()[:-20])
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=archive.parent)) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setattr(CIFAR10, "url", f"http://127.0.0.1:{server.server_port}/half")
        with pytest.raises(DpscopeError, match=r"CIFAR-10 could not be downloaded"):
            download(tmp_path / "data")
        assert list((tmp_path / "data").iterdir()) == []
        monkeypatch.setattr(CIFAR10, "url", f"http://127.0.0.1:{server.server_port}/{archive.name}")
        download(tmp_path / "data")
        server.shutdown()
    assert [path.name for path in (tmp_path / "data").iterdir()] == ["cifar-10-batches-py"]
    assert files_in(tmp_path / "data") == PARTS
