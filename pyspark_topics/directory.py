"""Directory: resolves the paths in a read's options to shards.

a data directory       manifest.json, shard-00/…
one shard of it        shard-00 with catalog-<n>.cbor, wal/wal-<number of the first frame, 20 digits>.log and
                       topics/<topic id>/seg-<first seq>.data
a backup               manifest.json, shard-00/…, cold/shard-00/… and backup.json; of a directory of backups
                       (`topics backup DIR`) the newest is read
a cold tier            shard-00/topics/… and nothing else: older segments. coldPath names it beside a data directory;
                       alone it is read without topic names (see `catalog.of_segments`)
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pyspark_topics.errors import ColdPathMissing, NotADataDirectory
from pyspark_topics.options import BadOption

FORMAT = 1
_SHARD = re.compile(r"shard-(\d+)")


@dataclass(frozen=True, slots=True)
class Shard:
    """Directory of one shard, and that of its cold segments if configured. `has_log` is false for a shard of a cold
    tier that is read alone."""

    number: int
    path: Path
    cold: Path | None = None
    has_log: bool = True

    def base(self, cold: bool) -> Path:
        """Parent of the folder `topics` of hot or cold segments. Raises `ColdPathMissing`."""
        if not cold:
            return self.path
        if self.cold is None:
            raise ColdPathMissing(
                f'{self.path}: some of its segments are in the cold tier; say .option("coldPath", '
                '"<the server\'s TOPICS_COLD_DIR>")'
            )
        return self.cold


def places(paths: Sequence[str], cold: Sequence[str] = ()) -> list[Shard]:
    """The shards of several paths. Raises `NotADataDirectory`, `BadOption`.

    Cold tiers in `cold` and in `paths` belong to the data directories in the same order. Without data directories they
    are read alone.
    """
    colds = [*cold, *(path for path in paths if is_cold(path))]
    hot = [path for path in paths if not is_cold(path)]
    if hot and colds and len(colds) != len(hot):
        # Two servers never share a cold tier, so each needs its own.
        raise BadOption(f"option coldPath names {len(colds)} directories for {len(hot)} paths; give one for each")
    if not hot:
        return [shard for path in paths for shard in _cold_shards(Path(path))]
    tiers: Sequence[str | None] = colds or [None] * len(hot)
    return [shard for path, tier in zip(hot, tiers, strict=True) for shard in shards(path, tier)]


def is_cold(path: str) -> bool:
    """Whether the path is a cold tier."""
    root = Path(path)
    if not root.is_dir() or (root / "manifest.json").exists():
        return False
    found = [child for child in root.iterdir() if _SHARD.fullmatch(child.name)]
    return bool(found) and all({part.name for part in child.iterdir()} == {"topics"} for child in found)


def _cold_shards(root: Path) -> list[Shard]:
    found = [(int(match[1]), child) for child in root.iterdir() if (match := _SHARD.fullmatch(child.name))]
    return [Shard(number, child, None, has_log=False) for number, child in sorted(found)]


def shards(path: str, cold: str | None = None) -> list[Shard]:
    """The shards below `path`: a data directory, a backup, or the directory of one shard. Raises
    `NotADataDirectory`."""
    root = Path(path)
    match = _SHARD.fullmatch(root.resolve().name)
    if match and (root / "wal").is_dir():
        return [_shard(int(match[1]), root, cold)]
    backups = [mark.parent for mark in root.glob("*/backup.json") if mark.parent.suffix != ".tmp"]
    if backups and not (root / "manifest.json").exists():
        root = max(backups)
    if (root / "backup.json").exists() and (root / "cold").is_dir():
        cold = cold or str(root / "cold")
    manifest = root / "manifest.json"
    try:
        about = json.loads(manifest.read_bytes())
        version, count = about["format"], int(about["shards"])
    except FileNotFoundError:
        raise NotADataDirectory(
            f"{path}: neither a data directory (no manifest.json) nor one shard of it (shard-NN with wal/), nor a "
            "backup; give load() the server's TOPICS_DATA_DIR"
        ) from None
    except (ValueError, KeyError, TypeError) as error:
        raise NotADataDirectory(f"{manifest}: not a manifest: {error!r}") from error
    if version != FORMAT:
        raise NotADataDirectory(f"{manifest}: format {version!r}, known here: {FORMAT}; update pyspark_topics")
    if (root / "reshard.json").exists():
        raise NotADataDirectory(
            f"{path}: it is being spread over another number of shards, and that was interrupted; finish it first"
        )
    return [_shard(number, root / f"shard-{number:02d}", cold) for number in range(count)]


def _shard(number: int, path: Path, cold: str | None) -> Shard:
    return Shard(number, path, Path(cold) / path.resolve().name if cold else None)
