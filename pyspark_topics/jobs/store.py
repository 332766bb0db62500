"""Where an archive lies: a directory of any file system that Spark knows, reached through Hadoop's classes.

Three things are relied on: a file under its final name is whole, a rename of one file happens or does not, and
`create` makes a file only if there is none of that name. For the last one Hadoop offers a rename that does not replace,
which is what Spark's own checkpoints rest on; on local disks, where that is two steps, a hard link is one.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote, urlsplit


class Store:
    """Paths are relative to `root`, parts separated by `/`."""

    def __init__(self, spark: Any, root: str) -> None:
        self._gateway = spark.sparkContext._gateway
        self._jvm = spark._jvm
        self._hadoop = self._jvm.org.apache.hadoop.fs
        self._conf = spark._jsc.hadoopConfiguration()
        files = self._hadoop.Path(root).getFileSystem(self._conf)
        self._files = files
        self.root = str(files.makeQualified(self._hadoop.Path(root)).toString()).rstrip("/")
        self._local = files.getScheme() == "file"

    def path(self, name: str) -> str:
        """For Spark."""
        return f"{self.root}/{name}"

    def list(self, name: str) -> list[str]:
        """Names in a directory, sorted; none if it does not exist."""
        directory = self._path(name)
        if not self._files.exists(directory):
            return []
        return sorted(str(status.getPath().getName()) for status in self._files.listStatus(directory))

    def files(self, name: str) -> Iterator[tuple[str, int]]:
        """All files below a directory, as paths relative to it, and their sizes."""
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
            return bytes(self._jvm.org.apache.commons.io.IOUtils.toByteArray(stream))
        finally:
            stream.close()

    def create(self, name: str, content: bytes, unique: str) -> None:
        """Make a file, whole from the first moment. Raises `FileExistsError`. `unique` tells it from other attempts."""
        made = self._path(f"{name}.{unique}.tmp")
        self._files.mkdirs(made.getParent())
        stream = self._files.create(made, True)
        stream.write(bytearray(content))
        stream.close()
        try:
            if self._local:
                _link(self._local_path(f"{name}.{unique}.tmp"), self._local_path(name))
            else:
                self._rename_new(made, self._path(name))
        finally:
            self._files.delete(made, False)

    def move(self, name: str, to: str) -> None:
        """Rename a file; without it, it is there already."""
        target = self._path(to)
        self._files.mkdirs(target.getParent())
        source = self._path(name)
        if self._files.exists(source) and not self._files.exists(target):
            # False where somebody else has just renamed it; what counts is looked at below.
            self._files.rename(source, target)
        if not self._files.exists(target):
            raise FileNotFoundError(f"{self.path(to)} is missing, and so is {self.path(name)}, which was to become it")

    def remove(self, name: str) -> None:
        """A file, or a directory with all that is in it."""
        self._files.delete(self._path(name), True)

    def _path(self, name: str) -> Any:
        return self._hadoop.Path(self.path(name))

    def _local_path(self, name: str) -> str:
        return unquote(urlsplit(self.root).path) + "/" + name

    def _rename_new(self, source: Any, target: Any) -> None:
        context = self._hadoop.FileContext.getFileContext(target.toUri(), self._conf)
        none = self._gateway.new_array(getattr(self._hadoop, "Options$Rename"), 0)
        try:
            context.rename(source, target, none)
        except Exception as error:  # py4j wraps whatever Java threw
            if "FileAlreadyExistsException" in str(error):
                raise FileExistsError(str(target.toString())) from error
            raise


def _link(source: str, target: str) -> None:
    """Raises `FileExistsError`."""
    descriptor = os.open(source, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    os.link(source, target)
    directory = os.open(os.path.dirname(target), os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
