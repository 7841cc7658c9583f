"""Runs test files side by side, in forks of the process that has collected them.

`--workers N` (make test): the tests and what they import are loaded once, which takes up to half a
minute of CPU time, instead of once for each worker. A worker asks for its next file before it runs
the last test of one, because pytest ends fixtures by the test that follows. The test in which a
worker dies fails, and a new worker goes on behind it.
"""

import itertools
import os
import random
import signal
import sys
import uuid
import warnings
from collections import deque
from collections.abc import Iterator
from multiprocessing.connection import Connection, Pipe, wait
from pathlib import Path
from typing import Any, Literal, NoReturn

import numpy as np
import pytest

from dpscope.launch.jobs.parent_death import die_with_process
from tests.helpers.fork_server import SESSION

Items = list[pytest.Item]


class Worker:
    """A fork, as the process that started it sees it."""

    def __init__(self, process: int, connection: Connection, items: Items) -> None:
        self.process = process
        self.connection = connection
        self.left = deque(items)  # given to it, and not reported


class ForkedWorkers:
    """pytest's loop over the tests: gives their files to workers, and pytest what these report."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.files: list[Items] = []
        self.given = 0
        self.workers: list[Worker] = []
        self.started = 0

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool | None:
        if session.testsfailed or session.config.option.collectonly:
            return None  # as without workers
        os.environ[SESSION] = uuid.uuid4().hex
        terminal(session.config).showfspath = False  # tests of several files end in turn
        grouped = itertools.groupby(session.items, lambda item: item.path)
        self.files = [list(items) for _, items in grouped]
        try:
            for _ in range(min(self.count, len(self.files))):
                self.start(session, [])
            while self.workers:
                self.listen(session)
        finally:
            for worker in self.workers:
                os.kill(worker.process, signal.SIGKILL)
                os.waitpid(worker.process, 0)
        return True

    def start(self, session: pytest.Session, items: Items) -> None:
        """A worker that begins with these tests."""
        folder = base_folder(session.config) / f"worker{self.started}"
        ours, its = Pipe()
        parent_id = os.getpid()
        sys.stdout.flush()
        process = os.fork()
        if process == 0:
            ours.close()
            die_with_process(parent_id)
            work(session.config, folder, its, itertools.chain(items, asked(its, self.files)))
        its.close()
        self.started += 1
        self.workers.append(Worker(process, ours, items))

    def listen(self, session: pytest.Session) -> None:
        """Answer what workers have sent."""
        ready = wait([worker.connection for worker in self.workers])
        for worker in [one for one in self.workers if one.connection in ready]:
            try:
                kind, content = worker.connection.recv()
            except (EOFError, ConnectionResetError):
                self.workers.remove(worker)
                self.ended(session, worker)
                continue
            if kind == "file":
                self.give(worker)
            elif kind == "warning":
                session.config.hook.pytest_warning_recorded.call_historic(kwargs=content)
            else:
                worker.left.popleft()
                for report in content:
                    hand_on(session, report)
        if session.shouldfail:
            raise session.Failed(session.shouldfail)
        if session.shouldstop:
            raise session.Interrupted(session.shouldstop)

    def give(self, worker: Worker) -> None:
        """The next file, or none for its end."""
        if self.given == len(self.files):
            worker.connection.send(None)
            return
        worker.connection.send(self.given)
        worker.left.extend(self.files[self.given])
        self.given += 1

    def ended(self, session: pytest.Session, worker: Worker) -> None:
        _, status = os.waitpid(worker.process, 0)
        code = os.waitstatus_to_exitcode(status)
        if code == 0 and not worker.left:
            return
        message = f"the worker ended with status {code}"
        if not worker.left:
            raise session.Failed(message)
        item = worker.left.popleft()
        names: dict[str, Literal[1]] = dict.fromkeys(item.keywords, 1)
        failed = pytest.TestReport(item.nodeid, item.location, names, "failed", message, "call")
        session.config.hook.pytest_runtest_logreport(report=failed)
        self.start(session, list(worker.left))


def terminal(config: pytest.Config) -> Any:
    return config.pluginmanager.get_plugin("terminalreporter")


def base_folder(config: pytest.Config) -> Path:
    """Of all folders for tests, which is made once."""
    factory: pytest.TempPathFactory = config._tmp_path_factory  # type: ignore[attr-defined]
    return factory.getbasetemp()


def hand_on(session: pytest.Session, data: dict[str, Any]) -> None:
    hook = session.config.hook
    report = hook.pytest_report_from_serializable(config=session.config, data=data)
    hook.pytest_runtest_logreport(report=report)


def work(
    config: pytest.Config, folder: Path, connection: Connection, items: Iterator[pytest.Item]
) -> NoReturn:
    """Run tests in a worker, and end it."""
    status = 1
    try:
        become_worker(config, folder)
        sent = Sent(config, connection)
        config.pluginmanager.register(sent)
        item = next(items, None)
        while item is not None:
            following = next(items, None)
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            sent.send_reports()
            item = following
        status = 0
    finally:
        os._exit(status)


def become_worker(config: pytest.Config, folder: Path) -> None:
    """With what must not be shared: random numbers, a base for folders, the file that output is
    captured in, the terminal.
    """
    random.seed()
    np.random.seed()
    folder.mkdir(mode=0o700)
    config._tmp_path_factory._basetemp = folder  # type: ignore[attr-defined]
    capture: Any = config.pluginmanager.get_plugin("capturemanager")
    capture.stop_global_capturing()
    capture.start_global_capturing()
    capture.suspend_global_capture()
    terminal(config)._tw._file = open(os.devnull, "w")  # noqa: SIM115 (until the worker ends)


def asked(connection: Connection, files: list[Items]) -> Iterator[pytest.Item]:
    """The tests of file after file, each asked for when it is needed."""
    while True:
        connection.send(("file", None))
        number = connection.recv()
        if number is None:
            return
        yield from files[number]


class Sent:
    """What a worker sends: the reports of each test, and warnings."""

    def __init__(self, config: pytest.Config, connection: Connection) -> None:
        self.config = config
        self.connection = connection
        self.reports: list[dict[str, Any]] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        hook = self.config.hook
        self.reports.append(hook.pytest_report_to_serializable(config=self.config, report=report))

    def send_reports(self) -> None:
        self.connection.send(("reports", self.reports))
        self.reports = []

    def pytest_warning_recorded(
        self,
        warning_message: warnings.WarningMessage,
        when: str,
        nodeid: str,
        location: tuple[str, int, str] | None,
    ) -> None:
        text = f"{warning_message.category.__name__}: {warning_message.message}"
        sent = warnings.WarningMessage(
            text, Warning, warning_message.filename, warning_message.lineno
        )
        values = {"warning_message": sent, "when": when, "nodeid": nodeid, "location": location}
        self.connection.send(("warning", values))
