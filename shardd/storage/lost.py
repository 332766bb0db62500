"""Files that do not belong where they are: they are set apart, and never removed, read or written over.

`shard-NN/lost+found/` has them under the names that they had in the shard's directory, those of the cold tier in the
shard's directory there. A number is added to a name that is taken, and to that of a file in place of a topic's folder.
"""

from __future__ import annotations

from itertools import count
from pathlib import Path
from typing import Any

import structlog

from shardd.storage.disk import Disk

FOLDER = "lost+found"
REMEDY = "nothing reads it any more: find out where it belongs, see operations.md, or remove it"
log: Any = structlog.get_logger()


def set_apart(disk: Disk, base: Path, path: Path) -> Path:
    """Move a file of the shard's directory `base` to its lost+found. Returns the new path. Blocks. Raises OSError."""
    folder = base / FOLDER / path.relative_to(base).parent
    disk.make_dir(folder)
    taken = set(disk.list(folder))
    # The folder of that topic may be needed here later.
    first = int(path.parent == base / "topics")
    names = (path.name if not n else f"{path.name}.{n}" for n in count(first))
    target = folder / next(name for name in names if name not in taken)
    disk.replace(path, target)
    while folder != base:
        disk.sync_dir(folder)
        folder = folder.parent
    disk.sync_dir(base)
    disk.sync_dir(path.parent)
    return target


def lost(disk: Disk, base: Path) -> list[Path]:
    """All files in the lost+found of `base`. Blocks."""
    found: list[Path] = []
    folders = [base / FOLDER]
    while folders:
        folder = folders.pop()
        try:
            names = disk.list(folder)
        except NotADirectoryError:
            found.append(folder)
            continue
        for name in names:
            # A name without a suffix is mostly a folder: `topics`, `wal`, or that of a topic.
            (found if "." in name else folders).append(folder / name)
    return found
