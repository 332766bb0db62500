"""Whether the cold folder is missing, for a shard that has no segments in it.

Such a shard cannot tell a folder that is empty from one that is not mounted, so it looks at the other shards beside it.
"""

from __future__ import annotations

from pathlib import Path

from shardd.storage import catalog
from shardd.storage.disk import Disk
from shardd.storage.owner import SHARD


def missing(disk: Disk, path: Path, cold: Path) -> bool:
    """True if the cold folder has no segments of other shards, although the newest catalog of one of them names some.
    `path` and `cold` are the shard's own folders in the two tiers. Blocks. Raises OSError."""
    others = [name for name in disk.list(path.parent) if SHARD.fullmatch(name) and name != path.name]
    folders = [cold.parent / name / "topics" for name in others]
    if any(map(disk.list, folders)):
        return False
    named = any(_names_cold(disk, path.parent / name) for name in others)
    return named and not any(map(disk.list, folders))  # a shard that has just begun copies them, then names them


def _names_cold(disk: Disk, path: Path) -> bool:
    """True if the newest catalog of the shard in `path` names cold segments, or cannot be read."""
    numbers = catalog.numbers(disk, path)
    if not numbers:
        return False
    try:
        entries = catalog.topics_of(disk.read(path / catalog.file_name(numbers[-1])))
        return any(isinstance(entry, dict) and any(cold for _, _, _, _, cold in entry["segments"]) for entry in entries)
    except (FileNotFoundError, catalog.CatalogError, *catalog.STRANGE):
        return True  # that shard will find out; this one copies nothing meanwhile
