"""The SQLite file that `nsys export --type sqlite` writes: opened read-only, checked, and its
tables read in chunks.

Nsight Systems creates tables only where there is something to store, and columns came and went
between its versions. Source: the schema reference in the documentation of nsys's exporter.
"""

import os
import re
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Any
from urllib.parse import quote

import numpy as np
from isal import igzip, igzip_lib

from dpscope.analysis.traces.reading.event_table import IntColumn
from dpscope.analysis.traces.reading.json_events import NONE
from dpscope.profiling.records.finding import listed
from dpscope.profiling.store.errors import DpscopeError, unreadable

SUFFIX = ".sqlite"
PACKED_SUFFIX = ".sqlite.gz"
REPORT_SUFFIXES = (".nsys-rep", ".qdrep", ".qdstrm")
"""How the files end that nsys records, which only nsys can read."""

_MAGIC = b"SQLite format 3\0"
_HEADER_BYTES = 100
_SCHEMA_MAJOR = 3  # of the exports of 2022 to 2026
_BLOCK_BYTES = 1 << 20
_ROWS_AT_ONCE = 1 << 16
_LOCKED_S = 1.0  # to wait for another program
_KERNELS = "CUPTI_ACTIVITY_KIND_KERNEL"
_COLUMN = re.compile(r"[A-Za-z]\w*")
_EXPORT = "nsys export --type sqlite --include-blobs=true"

Rows = list[tuple[Any, ...]]


def is_export(path: Path) -> bool:
    """Whether a file is one of nsys or another database, by its name or its first bytes."""
    if path.name.endswith((SUFFIX, PACKED_SUFFIX, *REPORT_SUFFIXES)):
        return True
    try:
        with open(path, "rb") as file:
            return file.read(len(_MAGIC)) == _MAGIC
    except OSError:
        return False  # the reader of traces reports it


class NsysDatabase(AbstractContextManager["NsysDatabase"]):
    """An open export; a compressed one is unpacked for as long as it is open. Raises DpscopeError
    for a file that is none, cannot be read or has more than `max_bytes`.
    """

    def __init__(self, path: Path, max_bytes: int) -> None:
        if path.name.endswith(REPORT_SUFFIXES):
            report = quoted(path)
            raise DpscopeError(
                f"{path} is a report that only nsys reads: run `{_EXPORT} {report}` and name the "
                f"{SUFFIX} file"
            )
        self.path = path
        self._unpacked = ExitStack()
        with self._unpacked:  # removed unless all goes well
            file = path
            if path.name.endswith(PACKED_SUFFIX):
                folder = self._unpacked.enter_context(TemporaryDirectory())
                file = Path(folder) / path.stem
                _unpack(path, file, max_bytes)
            size = file.stat().st_size
            if size > max_bytes:
                raise DpscopeError(
                    f"{path} has {size:,} bytes, more than are read: record fewer steps, or raise "
                    "--max-bytes"
                )
            self._open(file)
            self._unpacked = self._unpacked.pop_all()

    def _open(self, file: Path) -> None:
        """Connect to the database, which may be an unpacked copy of the export."""
        in_wal_mode = _check_header(file, self.path)
        name = quote(os.fspath(file.absolute()))
        uri = f"file:{name}?mode=ro"
        log = file.with_name(f"{file.name}-wal")
        if in_wal_mode and not log.exists():
            uri += "&immutable=1"  # else SQLite creates files next to it
        with self._errors():
            self._connection = sqlite3.connect(uri, timeout=_LOCKED_S, uri=True)
            self._connection.execute("PRAGMA trusted_schema = OFF")
        self._connection.text_factory = lambda text: text.decode("utf-8", errors="replace")
        try:
            self._check_schema()
        except DpscopeError:
            self._connection.close()
            raise

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._connection.close()
        self._unpacked.close()

    def columns(self, table: str) -> frozenset[str]:
        """The names of a table's columns; none where the export has no such table."""
        rows = self.query("SELECT name FROM pragma_table_info(?)", (table,))
        return frozenset(name for (name,) in rows)

    def query(self, statement: str, values: Sequence[object] = ()) -> Rows:
        """All rows of a statement."""
        with self._errors():
            return self._connection.execute(statement, values).fetchall()

    def chunks(self, statement: str) -> Iterator[Rows]:
        """The rows of a statement, some at a time."""
        with self._errors():
            cursor = self._connection.execute(statement)
        while True:
            with self._errors():
                rows = cursor.fetchmany(_ROWS_AT_ONCE)
            if not rows:
                return
            yield rows

    def integers(
        self, table: str, names: Sequence[str], optional: Sequence[str] = (), where: str = "true"
    ) -> Iterator[dict[str, IntColumn]]:
        """Columns of whole numbers, some rows at a time; NONE for a missing value. Nothing where
        the export has no such table.

        An `optional` one, which may be an expression of columns, is NONE where the table lacks a
        column for it. Raises DpscopeError where one of `names` is lacking.
        """
        present = self.columns(table)
        if not present:
            return
        if lacking := sorted(set(names) - present):
            raise DpscopeError(
                f"{self.path}: {table} has no column {lacking[0]}: export it with an nsys of 2022 "
                "or later"
            )
        known = [name for name in optional if present.issuperset(_COLUMN.findall(name))]
        wanted = (*names, *known)
        selected = ", ".join(f"ifnull({_sql(name)}, {NONE})" for name in wanted)
        for rows in self.chunks(f"SELECT {selected} FROM {table} WHERE {where}"):
            missing = np.broadcast_to(np.int64(NONE), len(rows))
            columns = dict.fromkeys(optional, missing)
            values = self.array(table, rows).T
            yield columns | dict(zip(wanted, values, strict=True))

    def text(self, number: int) -> str:
        """What StringIds holds under a number."""
        rows = self.query("SELECT value FROM StringIds WHERE id = ?", (number,))
        return str(rows[0][0]) if rows else f"unknown ({number})"

    def values(self, table: str, column: str, where: str = "true") -> list[Any]:
        """The known values of a column; none where the export has no such table or column."""
        if column not in self.columns(table):
            return []
        rows = self.query(f'SELECT "{column}" FROM {table} WHERE "{column}" NOT NULL AND {where}')
        return [value for (value,) in rows]

    def pairs(self, table: str) -> dict[str, str]:
        """A table of names and values; empty where the export has no such table."""
        if not {"name", "value"} <= self.columns(table):
            return {}
        rows = self.query(f"SELECT name, value FROM {table} WHERE value NOT NULL")
        return {str(name): str(value) for name, value in rows}

    def array(self, table: str, rows: Rows) -> IntColumn:
        """Rows of whole numbers; raises DpscopeError where one of them is none."""
        try:
            return np.array(rows, dtype=np.int64)
        except (TypeError, ValueError, OverflowError) as error:
            raise DpscopeError(
                f"{self.path}: {table} holds a value that is no whole number; export it again "
                f"with `{_EXPORT}`"
            ) from error

    def _check_schema(self) -> None:
        rows = self.query("SELECT name FROM sqlite_master WHERE type = 'table'")
        tables = {str(name) for (name,) in rows}
        exported = {"StringIds", "META_DATA_EXPORT", _KERNELS, "NVTX_EVENTS"} & tables
        if "StringIds" not in exported or len(exported) < 2:
            raise DpscopeError(
                f"{self.path} is an SQLite database, but no export of Nsight Systems (it holds "
                f"{listed(sorted(tables), 3) or 'no table'}); `{_EXPORT} REPORT.nsys-rep` makes one"
            )
        version = self.pairs("META_DATA_EXPORT").get("EXPORT_SCHEMA_VERSION", "")
        major = version.partition(".")[0]
        if major.isdigit() and int(major) > _SCHEMA_MAJOR:
            raise DpscopeError(
                f"{self.path} has version {version} of nsys's schema, and {_SCHEMA_MAJOR}.x is "
                "read: update dpscope, or export it with an nsys of 2022 to 2026"
            )
        if _KERNELS not in tables:
            raise DpscopeError(
                f"{self.path} holds no kernel (no table {_KERNELS}): record with `nsys profile "
                "--trace=cuda,nvtx` while steps run"
            )

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """What SQLite reports as one line."""
        try:
            yield
        except (sqlite3.Error, OverflowError) as error:
            journals = (f"{self.path.name}{suffix}" for suffix in ("-wal", "-journal"))
            next_to = [name for name in journals if self.path.with_name(name).exists()]
            action = f"export it again with `{_EXPORT}`"
            if next_to:
                action = f"{next_to[0]} lies next to it: a program still writes it, or was stopped"
            elif "locked" in str(error):
                action = "another program writes it: wait for it to end"
            raise DpscopeError(f"cannot read {self.path}: {error}; {action}") from error


def _sql(name: str) -> str:
    """A column, whose name may be a word of SQL, or an expression of some."""
    return f'"{name}"' if _COLUMN.fullmatch(name) else name


def quoted(path: Path) -> str:
    """A path for a command line."""
    import shlex

    return shlex.quote(str(path))


def _unpack(path: Path, place: Path, max_bytes: int) -> None:
    """Decompress a file, up to a little more than `max_bytes`.

    Raises DpscopeError for one that is damaged or cannot be read, and where the disk is full.
    """
    try:
        with igzip.open(path, "rb") as packed, open(place, "wb") as file:  # type: ignore[no-untyped-call]
            while block := packed.read(_BLOCK_BYTES):
                file.write(block)
                if file.tell() > max_bytes:
                    break  # enough to be refused
    except OSError as error:
        raise DpscopeError(f"cannot decompress {path}: {error.strerror or error}") from error
    except EOFError as error:
        raise DpscopeError(f"{path} is cut short; copy it again") from error
    except igzip_lib.IsalError as error:  # type: ignore[misc]  # isal's stubs call it a plain object
        raise DpscopeError(f"{path} is damaged: {error}; copy it again") from error


def _check_header(file: Path, path: Path) -> bool:
    """Whether the database uses a write-ahead log; raises DpscopeError for a file that is none, or
    is cut short.

    Source: sqlite.org/fileformat2.html, The Database Header.
    """
    try:
        with open(file, "rb") as database:
            header = database.read(_HEADER_BYTES)
            size = database.seek(0, os.SEEK_END)
    except OSError as error:
        raise DpscopeError(unreadable(path, error)) from error
    if not header.startswith(_MAGIC) or len(header) < _HEADER_BYTES:
        raise DpscopeError(
            f"{path} is no SQLite database: run `{_EXPORT} REPORT.nsys-rep` and name its output"
        )
    stored = int.from_bytes(header[16:18], "big")
    page_bytes = 1 << 16 if stored == 1 else stored
    pages = int.from_bytes(header[28:32], "big")
    count_is_valid = header[24:28] == header[92:96]
    if count_is_valid and size < pages * page_bytes:
        raise DpscopeError(
            f"{path} is cut short: it has {size:,} of {pages * page_bytes:,} bytes; copy or "
            "export it again"
        )
    write_version = header[18]
    return write_version == 2
