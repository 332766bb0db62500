"""Claims about the disk: it opens regular files only."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from shardd.storage.disk import RealDisk


def test_links_and_fifos_are_errors_and_are_not_waited_for(tmp_path: Path) -> None:
    (tmp_path / "real").write_bytes(b"bytes")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    os.mkfifo(tmp_path / "fifo")
    disk = RealDisk()
    assert bytes(disk.read(tmp_path / "real")) == b"bytes"
    for name in ("link", "fifo"):
        with pytest.raises(OSError, match=r"Too many levels of symbolic links|is no regular file") as caught:
            disk.read(tmp_path / name)
        assert str(tmp_path / name) in str(caught.value)
    for opening in (disk.open, disk.create):
        with pytest.raises(OSError, match="Too many levels of symbolic links"):
            opening(tmp_path / "link")
    assert (tmp_path / "real").read_bytes() == b"bytes"
