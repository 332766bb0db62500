"""Snapshot: what a shard's files say at one moment. `directory` and `replica` (a bucket) make them.

A shard to be read is a `Place`. Places are pickled and sent to tasks, which take a newer snapshot if a file is gone.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from pyspark_topics.catalog import Catalog
from pyspark_topics.logfile import LogFile
from pyspark_topics.options import Topics
from pyspark_topics.storage import File


class Place(Protocol):
    """A shard to be read. Hashable."""

    @property
    def number(self) -> int: ...

    @property
    def path(self) -> Path | str: ...

    @property
    def state(self) -> str:
        """The first object of a snapshot: "catalog" or "manifest", for messages."""

    def may_hold(self, topics: Topics) -> bool:
        """False if none of the topics can be in this shard."""

    def snapshot(self, fail: bool) -> Snapshot:
        """The newest readable state. Raises `CorruptFile`, `UnknownFormat`, `FileNotFoundError`, OSError."""


class Snapshot(Protocol):
    @property
    def shard(self) -> Place: ...

    @property
    def catalog(self) -> Catalog: ...

    @property
    def number(self) -> int:
        """Higher for a later snapshot that begins with another catalog, lowest (`ABSENT`) if nothing is there."""

    def logs(self, fail: bool) -> list[LogFile]:
        """The files of the log with frames after the catalog, oldest first. Raises `CorruptFile`, `Trimmed`,
        `FileNotFoundError`, OSError."""

    def segment(self, name: str, cold: bool) -> File:
        """The file of a segment. Raises `ColdPathMissing`."""


Key = tuple[Place, int]
"""A topic: shard and id."""
