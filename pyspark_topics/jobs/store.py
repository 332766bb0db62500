"""Store: the directory of an archive, on any file system that Spark supports, through Hadoop's classes.

The archive relies on three properties: a file under its final name is complete, the rename of a file is atomic, and
`create` never replaces a file. For the last one Hadoop has a rename without replacement, on which Spark's own
checkpoints rely too. On local disks that rename is not atomic, so a hard link is used.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any
from urllib.parse import unquote, urlsplit

from pyspark_topics.lake import disk


class Store:
    """Directory of files. Paths are relative to `root`, with parts separated by `/`."""

    def __init__(self, spark: Any, root: str) -> None:
        self._gateway = spark.sparkContext._gateway
        self.jvm = spark._jvm
        self._hadoop = self.jvm.org.apache.hadoop.fs
        self.configuration = spark._jsc.hadoopConfiguration()
        files = self._hadoop.Path(root).getFileSystem(self.configuration)
        self._files = files
        self.root = str(files.makeQualified(self._hadoop.Path(root)).toString()).rstrip("/")
        self._local = files.getScheme() == "file"

    def path(self, name: str) -> str:
        """Full path of a file, for Spark."""
        return f"{self.root}/{name}"

    def list(self, name: str) -> list[str]:
        """Names in a directory, sorted; none if it does not exist."""
        directory = self._path(name)
        if not self._files.exists(directory):
            return []
        return sorted(str(status.getPath().getName()) for status in self._files.listStatus(directory))

    def files(self, name: str) -> Iterator[tuple[str, int]]:
        """All files below a directory: path relative to it, and size in bytes."""
        top = self._path(name)
        if not self._files.exists(top):
            return
        cut = len(str(self._files.makeQualified(top).toUri().getPath())) + 1
        found = self._files.listFiles(top, True)
        while found.hasNext():
            status = found.next()
            yield str(status.getPath().toUri().getPath())[cut:], int(status.getLen())

    def exists(self, name: str) -> bool:
        return bool(self._files.exists(self._path(name)))

    def read(self, name: str) -> bytes:
        stream = self._files.open(self._path(name))
        try:
            return bytes(self.jvm.org.apache.commons.io.IOUtils.toByteArray(stream))
        finally:
            stream.close()

    def create(self, name: str, content: bytes, unique: str) -> None:
        """Create a file atomically. Raises `FileExistsError`. `unique` separates it from other attempts."""
        made = self._made(name, content, unique)
        try:
            if self._local:
                disk.link(self._local_path(f"{name}.{unique}.tmp"), self._local_path(name))
            else:
                self._rename_new(made, self._path(name))
        finally:
            self._files.delete(made, False)

    def replace(self, name: str, content: bytes, unique: str) -> None:
        """Write a file, in place of the one that has its name. Readers see the one or the other."""
        made = self._made(name, content, unique)
        context = self._hadoop.FileContext.getFileContext(made.toUri(), self.configuration)
        kind = getattr(self._hadoop, "Options$Rename")
        over = self._gateway.new_array(kind, 1)
        over[0] = kind.OVERWRITE
        context.rename(made, self._path(name), over)

    def _made(self, name: str, content: bytes, unique: str) -> Any:
        """Path of a new file that is to get the name."""
        made = self._path(f"{name}.{unique}.tmp")
        self._files.mkdirs(made.getParent())
        stream = self._files.create(made, True)
        stream.write(bytearray(content))
        stream.close()
        return made

    def move(self, name: str, to: str) -> None:
        """Rename a file. Does nothing if `name` is gone and `to` exists. Raises `FileNotFoundError` without either."""
        target = self._path(to)
        self._files.mkdirs(target.getParent())
        source = self._path(name)
        if self._files.exists(source) and not self._files.exists(target):
            # Returns False if another run has just renamed it; the check below decides.
            self._files.rename(source, target)
        if not self._files.exists(target):
            raise FileNotFoundError(f"{self.path(to)} is missing, and so is {self.path(name)}, which was to become it")

    def remove(self, name: str) -> None:
        """Remove a file, or a directory with its content."""
        self._files.delete(self._path(name), True)

    def locked(self) -> AbstractContextManager[None]:
        """Context in which no other process of this machine changes the lake here. On other file systems there is no
        lock."""
        return disk.locked(self._local_path("").rstrip("/")) if self._local else nullcontext()

    def _path(self, name: str) -> Any:
        return self._hadoop.Path(self.path(name))

    def _local_path(self, name: str) -> str:
        return unquote(urlsplit(self.root).path) + "/" + name

    def _rename_new(self, source: Any, target: Any) -> None:
        context = self._hadoop.FileContext.getFileContext(target.toUri(), self.configuration)
        none = self._gateway.new_array(getattr(self._hadoop, "Options$Rename"), 0)
        try:
            context.rename(source, target, none)
        except Exception as error:  # py4j wraps Java's exceptions
            if "FileAlreadyExistsException" in str(error):
                raise FileExistsError(str(target.toString())) from error
            raise
