"""Claims about writing a lake on a disk from several processes."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest

from pyspark_topics.lake import disk
from pyspark_topics.lake.layout import LOCK


def free(root: Path) -> bool:
    """Whether another process could take the lock of the lake."""
    descriptor = os.open(root / LOCK, os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)
    return True


def test_one_process_at_a_time_changes_a_lake(tmp_path: Path) -> None:
    disk.create(tmp_path / LOCK, b"")
    assert free(tmp_path)
    with disk.locked(str(tmp_path)):
        assert not free(tmp_path)
    assert free(tmp_path)


def test_a_file_is_created_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b"
    disk.create(path, b"first")
    with pytest.raises(FileExistsError):
        disk.create(path, b"second")
    assert path.read_bytes() == b"first"
    assert list(path.parent.iterdir()) == [path]
