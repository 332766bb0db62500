"""A data directory as a list of shards.

<data directory>/manifest.json
<data directory>/shard-00/catalog-<n>.cbor
<data directory>/shard-00/wal/wal-<number of the first frame, 20 digits>.log
<data directory>/shard-00/topics/<topic id>/seg-<first seq>.data
<cold directory>/shard-00/topics/…                                  older segments, if the server has a cold tier
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path

from pyspark_topics.errors import ColdPathMissing, NotADataDirectory

FORMAT = 1
_SHARD = re.compile(r"shard-(\d+)")


@dataclass(frozen=True, slots=True)
class Shard:
    """One shard's directory, and the directory of its cold segments if somebody said where they are."""

    number: int
    path: Path
    cold: Path | None = None

    def base(self, cold: bool) -> Path:
        """Where the folder `topics` of hot or cold segments is. Raises `ColdPathMissing`."""
        if not cold:
            return self.path
        if self.cold is None:
            raise ColdPathMissing(
                f'{self.path}: some of its segments are in the cold tier; say .option("coldPath", '
                '"<the server\'s TOPICS_COLD_DIR>")'
            )
        return self.cold


def shards(path: str, cold: str | None = None) -> list[Shard]:
    """The shards below `path`: a data directory, or the directory of one shard. Raises `NotADataDirectory`."""
    root = Path(path)
    match = _SHARD.fullmatch(root.resolve().name)
    if match and (root / "wal").is_dir():
        return [_shard(int(match[1]), root, cold)]
    manifest = root / "manifest.json"
    try:
        about = json.loads(manifest.read_bytes())
        version, count = about["format"], int(about["shards"])
    except FileNotFoundError:
        raise NotADataDirectory(
            f"{path}: neither a data directory (no manifest.json) nor one shard of it (shard-NN with wal/); "
            "give load() the server's TOPICS_DATA_DIR"
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
