"""Claims about locks of directories."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

import pytest

from proto.process.directory_lock import lock_directory


def test_a_directory_has_one_lock_until_it_is_closed(tmp_path: Path) -> None:
    one, other = (os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY) for _ in range(2))
    lock_directory(one)
    with pytest.raises(BlockingIOError):
        lock_directory(other)
    os.close(one)
    lock_directory(other)
    os.close(other)


@pytest.mark.parametrize(("failure", "harmless"), [(errno.ENOLCK, True), (errno.EBADF, True), (errno.EIO, False)])
def test_where_directories_have_no_locks_there_is_none_and_other_errors_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failure: int, harmless: bool
) -> None:
    def failing(descriptor: int, operation: int) -> None:
        raise OSError(failure, "")

    monkeypatch.setattr(fcntl, "flock", failing)
    if harmless:
        lock_directory(-1)
    else:
        with pytest.raises(OSError, match=str(failure)):
            lock_directory(-1)
