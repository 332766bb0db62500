"""Disk: how processes of one machine write a lake on its disk without harm to each other."""

from __future__ import annotations

import fcntl
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pyspark_topics.lake.layout import LOCK


@contextmanager
def locked(root: str) -> Iterator[None]:
    """Context in which no other process of this machine changes the lake at `root`. Waits for it.

    A batch and `reconcile` hold the lock, because a vacuum removes files that are not committed yet.
    """
    descriptor = os.open(f"{root}/{LOCK}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def create(path: Path, content: bytes) -> None:
    """Create a file atomically. Raises `FileExistsError`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    made = path.with_name(f"{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        made.write_bytes(content)
        link(str(made), str(path))
    finally:
        made.unlink(missing_ok=True)


def link(source: str, target: str) -> None:
    """Sync `source` and hard-link it as `target`. Raises `FileExistsError`."""
    _sync(source)
    os.link(source, target)
    _sync(os.path.dirname(target))


def _sync(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
