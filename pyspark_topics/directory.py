"""Directory: resolves the paths in a read's options to shards.

a data directory       manifest.json, shard-00/…
one shard of it        shard-00 with catalog-<n>.cbor, wal/wal-<number of the first frame, 20 digits>.log and
                       topics/<topic id>/seg-<first seq>.data
a backup               manifest.json, shard-00/…, cold/shard-00/… and backup.json; of a directory of backups
                       (`topics backup DIR`) the newest is read
a cold tier            shard-00/topics/… and nothing else: older segments. coldPath names it beside a data directory;
                       alone it is read without topic names (see `catalog.of_segments`)
a bucket               s3://…, gs://…, az://…, abfs://…, or a directory with service.json: see `replica`
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from pyspark_topics import catalog
from pyspark_topics.catalog import Catalog
from pyspark_topics.errors import ColdPathMissing, CorruptFile, NotADataDirectory, Trimmed
from pyspark_topics.logfile import LogFile
from pyspark_topics.options import BUCKETS, SERVICE, BadOption, Topics
from pyspark_topics.snapshot import Place
from pyspark_topics.storage import LocalFile

FORMAT = 1
DECISION = "reshard.json"
_SHARD = re.compile(r"shard-(\d+)")


_FILE = re.compile(r"wal-(\d{20})\.log")


@dataclass(frozen=True, slots=True)
class Shard:
    """Directory of one shard, and that of its cold segments if configured. `has_log` is false for a shard of a cold
    tier that is read alone. `of` is the number of shards when the read was planned, 0 if that is not known."""

    number: int
    path: Path
    cold: Path | None = None
    has_log: bool = True
    of: int = 0
    state: ClassVar = "catalog"

    def may_hold(self, topics: Topics) -> bool:
        """True: finding out costs as little as knowing."""
        return True

    def snapshot(self, fail: bool) -> DirectorySnapshot:
        """Raises as `Place.snapshot`."""
        found = catalog.newest(self.path) if self.has_log else catalog.of_segments(self.path)
        root = self.path.absolute().parent
        if self.of and ((root / DECISION).exists() or _count(root) not in (0, self.of)):
            raise CorruptFile(
                f"{root}: it was spread over another number of shards when the read had been planned; read again"
            )
        return DirectorySnapshot(self, found)

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


@dataclass(frozen=True, slots=True)
class DirectorySnapshot:
    """The newest catalog of a shard's directory, and its files."""

    shard: Shard
    catalog: Catalog

    @property
    def number(self) -> int:
        return self.catalog.number

    def segment(self, name: str, cold: bool) -> LocalFile:
        return LocalFile(str(self.shard.base(cold) / name))

    def logs(self, fail: bool) -> list[LogFile]:
        directory, frame_no = self.shard.path / "wal", self.catalog.frame_no
        # A shard that never started has no directory yet.
        listed = sorted(directory.iterdir()) if directory.is_dir() else []
        # Empty files are skipped: a failed rotation may leave one.
        files = [
            (path, int(match[1])) for path in listed if (match := _FILE.fullmatch(path.name)) and path.stat().st_size
        ]
        while len(files) > 1 and files[1][1] <= frame_no + 1:
            del files[0]
        if files and files[0][1] > frame_no + 1:
            raise Trimmed(
                f"the log in {directory} begins with frame {files[0][1]}, the catalog ends at frame {frame_no}"
            )
        untils = [*(first for _, first in files), None][1:]
        return [
            LogFile(LocalFile(str(path)), first, until, fail=fail)
            for (path, first), until in zip(files, untils, strict=False)
        ]


def places(paths: Sequence[str], cold: Sequence[str] = (), key_file: str = "") -> list[Place]:
    """The shards of several paths. Raises `NotADataDirectory`, `BadOption`, OSError.

    Cold tiers in `cold` and in `paths` belong to the data directories in the same order. Without data directories they
    are read alone. Buckets hold their cold segments; `key_file` has the key that they are sealed with.
    """
    found: list[Place] = []
    if buckets := [path for path in paths if is_bucket(path)]:
        from pyspark_topics import replica  # Arrow's clients of object stores take long to load

        found += [shard for path in buckets for shard in replica.shards(path, key_file)]
    return [*found, *_of_directories([path for path in paths if path not in buckets], cold)]


def is_bucket(path: str) -> bool:
    """Whether the path is the URL of a bucket, or the directory of a file:/// bucket."""
    return path.startswith(BUCKETS) or (
        (Path(path) / SERVICE).is_file() and not (Path(path) / "manifest.json").exists()
    )


def _of_directories(paths: Sequence[str], cold: Sequence[str]) -> list[Shard]:
    colds = [*cold, *(path for path in paths if is_cold(path))]
    hot = [path for path in paths if not is_cold(path)]
    if not paths and cold:
        raise BadOption("option coldPath goes with a data directory: a bucket holds its cold segments; leave it out")
    if hot and colds and len(colds) != len(hot):
        # Two servers never share a cold tier, so each needs its own.
        raise BadOption(f"option coldPath names {len(colds)} directories for {len(hot)} paths; give one for each")
    if not hot:
        return [shard for path in paths for shard in _cold_shards(Path(path))]
    tiers: Sequence[str | None] = colds or [None] * len(hot)
    return [shard for path, tier in zip(hot, tiers, strict=True) for shard in shards(path, tier)]


def is_cold(path: str) -> bool:
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
        return [_shard(int(match[1]), root, cold, _count(root.absolute().parent))]
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
    if (root / DECISION).exists():
        raise NotADataDirectory(
            f"{path}: it is being spread over another number of shards, and that was interrupted; finish it first"
        )
    found = [_shard(number, root / f"shard-{number:02d}", cold, count) for number in range(count)]
    missing = [shard.path.name for shard in found if not (shard.path / "wal").is_dir()]
    if missing and (root / "machine.json").exists():
        raise NotADataDirectory(
            f"{path}: it is of one of several machines, and has no {', '.join(missing)}; read the service's bucket"
        )
    return found


def _shard(number: int, path: Path, cold: str | None, count: int) -> Shard:
    return Shard(number, path, Path(cold) / path.resolve().name if cold else None, of=count)


def _count(root: Path) -> int:
    """The number of shards by the manifest in `root`; 0 if none can be read."""
    try:
        return int(json.loads((root / "manifest.json").read_bytes())["shards"])
    except (OSError, ValueError, KeyError, TypeError):
        return 0
