"""Delta without a JVM: the door to `deltalake`. Appends once, deletes, compacts and vacuums tables of a local lake.

The library does not refuse a commit whose transaction identifier the table has already. An append therefore compares
the version in the table's newest `Mark` first, and lets Delta refuse its commit if any other one came between:

    another commit that adds no rows      the comparison and the append are repeated
    another run of the lake               `LakeError`; the version is that run's
    another writer's rows                 `LakeError`
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.fs as fs
from deltalake import CommitProperties, DeltaTable, Transaction, WriterProperties, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError

from pyspark_topics.lake import disk, history
from pyspark_topics.lake.layout import GAPS, ROWS, LakeError, Mark, app_id, tables
from pyspark_topics.lake.sink import MANY

TRIES = 5
"""How often a commit may meet one of another engine's maintenance."""
SPARE_BYTES = 1 << 20
"""Free space that a commit needs besides its rows."""
_WRITER = WriterProperties(compression="ZSTD")


class Files:
    """The lake's directory, as `history` reads it."""

    def __init__(self, root: Path) -> None:
        self.root = str(root)

    def list(self, name: str) -> list[str]:
        try:
            return sorted(os.listdir(self.path(name)))
        except (FileNotFoundError, NotADirectoryError):
            return []

    def read(self, name: str) -> bytes:
        return Path(self.path(name)).read_bytes()

    def exists(self, name: str) -> bool:
        return os.path.exists(self.path(name))

    def create(self, name: str, content: bytes, unique: str) -> None:
        """Create a file atomically. Raises `FileExistsError`."""
        disk.create(Path(self.path(name)), content)

    def path(self, name: str) -> str:
        return f"{self.root}/{name}"


class Tables(history.Tables):
    """The tables of a lake. All methods raise `LakeError` if something else wrote to a table, or cannot be written."""

    def names(self) -> list[str]:
        """The tables of rows."""
        return tables(self._files, self._about.form)

    def open(self, name: str) -> DeltaTable | None:
        """The table as of now; None if there is none."""
        return DeltaTable(self._files.path(name)) if self.at(name).commit >= 0 else None

    def rows(self, name: str) -> ds.Dataset | None:
        """The rows of a table as of now; None if there is none.

        The library's own file system is in Python. With it, a thread of pyarrow may need the interpreter when the
        program has ended already, which ends it with SIGABRT.
        """
        table = self.open(name)
        if table is None:
            return None
        return table.to_pyarrow_dataset(filesystem=fs.SubTreeFileSystem(self._files.path(name), fs.LocalFileSystem()))

    def append(self, name: str, rows: pa.Table, mark: Mark) -> None:
        """Append rows as version `mark.version`. Raises `LakeError` if a table of rows has that version already; what
        `gaps` has, the caller knows."""
        of = GAPS if name == GAPS else ROWS
        need, free = rows.nbytes + SPARE_BYTES, shutil.disk_usage(self._files.root).free
        if free < need:
            # The library's threads would print tracebacks.
            raise LakeError(f"{self._files.root}: no space left on its disk: {free} bytes, this needs up to {need}")
        once = Transaction(app_id(self._about.lake, of), mark.version)

        def write(table: DeltaTable) -> None:
            write_deltalake(
                table, rows, mode="append", writer_properties=_WRITER, commit_properties=_said(mark, [once])
            )

        if self.at(name).commit < 0:
            with _told(self._files.path(name)):
                self.create(name)
        before = self.at(name).mark.version
        if before >= mark.version and name != GAPS:
            raise self._other(name)
        self._commit(name, before, write)

    def delete(self, name: str, predicate: str) -> None:
        """Delete the rows for which the predicate holds."""

        def remove(table: DeltaTable) -> None:
            table.delete(predicate, writer_properties=_WRITER, commit_properties=self._repeated(name))

        self._commit(name, self.at(name).mark.version, remove)

    def compact(self, name: str, target: int) -> None:
        """Join small files to files of about `target` bytes, if a partition has many."""
        table = self.open(name)
        if table is None or not _crowded(table, target):
            return

        def compact(table: DeltaTable) -> None:
            table.optimize.compact(
                target_size=target, writer_properties=_WRITER, commit_properties=self._repeated(name)
            )

        self._commit(name, self.at(name).mark.version, compact)

    def vacuum(self, name: str, hours: float) -> None:
        """Remove files that the table has not used for `hours`, rounded down."""

        def vacuum(table: DeltaTable) -> None:
            table.vacuum(
                int(hours),
                dry_run=False,
                enforce_retention_duration=False,
                full=True,
                commit_properties=self._repeated(name),
            )

        if self.at(name).commit >= 0:
            self._commit(name, self.at(name).mark.version, vacuum)

    def _repeated(self, name: str) -> CommitProperties:
        return _said(replace(self.at(name).mark, repeated=True))

    def _commit(self, name: str, version: int, change: Callable[[DeltaTable], None]) -> None:
        """Make a change to a table whose mark has `version`."""
        path = self._files.path(name)
        for _ in range(TRIES):
            with _told(path):
                table = DeltaTable(path)
                try:
                    if self.at(name).mark.version == version:
                        change(table)
                        return
                except CommitFailedError:
                    pass
            if self.at(name).mark.version != version:
                raise self._other(name)
        raise LakeError(f"{path}: another program changes it all the time; run this again when it has ended")

    def _other(self, name: str) -> LakeError:
        return LakeError(
            f"{self._files.path(name)}: another run of this lake wrote version {self.at(name).mark.version} meanwhile; "
            "its rows are there once. Let one run write a lake"
        )


def _said(mark: Mark, once: list[Transaction] | None = None) -> CommitProperties:
    return CommitProperties(custom_metadata={"userMetadata": mark.dump()}, max_commit_retries=0, app_transactions=once)


@contextmanager
def _told(path: str) -> Iterator[None]:
    """Context in which errors of the library and of the disk become a `LakeError` of one line."""
    try:
        yield
    except (CommitFailedError, LakeError):
        raise
    except (DeltaError, OSError) as error:
        text = str(error)
        if "No space left" in text or "os error 28" in text:
            raise LakeError(f"{path}: no space left on its disk; the table is as it was before") from None
        raise LakeError(f"{path}: {text.splitlines()[0] if text else type(error).__name__}") from error


def _crowded(table: DeltaTable, target: int) -> bool:
    """Whether a partition has many files that are small for `target` bytes."""
    files = pa.table(table.get_add_actions(flatten=True))
    small = files.filter(pc.less(files["size_bytes"], target // 2))
    by = [column for column in small.column_names if column.startswith("partition.")]
    counts = small.group_by(by).aggregate([([], "count_all")])["count_all"]
    return (pc.max(counts).as_py() or 0) >= MANY


def offsets_in(topic: str, epoch: int, runs: Sequence[tuple[int, int]]) -> str:
    """A predicate for the rows of a topic's instance at offsets in `runs`, first and last each."""
    among = " OR ".join(
        f'"offset" = {first}' if first == last else f'"offset" BETWEEN {first} AND {last}' for first, last in runs
    )
    named = topic.replace("'", "''")
    return f"topic = '{named}' AND epoch = {epoch} AND ({among})"
