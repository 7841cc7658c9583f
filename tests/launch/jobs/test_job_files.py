"""What a job leaves for whoever started it, read while the job goes on."""

import threading
from pathlib import Path

from dpscope.launch.jobs.job_files import PROGRESS_NAME, read_progress, remove_job_files


def test_progress_is_read_while_the_job_removes_it(tmp_path: Path) -> None:
    """Whatever moment the reader comes at: the text or None, as of a job that ends while it is watched."""
    over = threading.Event()

    def come_and_go() -> None:
        for _ in range(4000):
            (tmp_path / PROGRESS_NAME).write_text("timed")
            remove_job_files(tmp_path)
        over.set()

    job = threading.Thread(target=come_and_go)
    job.start()
    read = set()
    while not over.is_set():
        read.add(read_progress(tmp_path))
    job.join()
    assert read <= {None, "", "timed"}  # empty: written here without a temporary file
    assert None in read
    assert read_progress(tmp_path) is None
