"""The owner of a shard's files: which shard of which service they belong to."""

from __future__ import annotations

import json
import re
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import xxhash

from shardd.storage.disk import Disk

MANIFEST = "manifest.json"
SHARD = re.compile("shard-[0-9]{2,}")
"""Names of the folders of shards. Another one that begins so is not ours to move."""
_KEY = struct.Struct("<qq")
UNKNOWN = -1


@dataclass(frozen=True, slots=True)
class Owner:
    """`service` is `created_ms` of the data directory's manifest, which restores keep; `shard` the number of the
    shard among `shards`. `UNKNOWN` where nothing says so."""

    service: int = UNKNOWN
    shard: int = UNKNOWN
    shards: int = UNKNOWN

    @property
    def seed(self) -> int | None:
        """The seed of the links between the frames of its log. None if the owner is not known, as in a copy of the
        directory that has no manifest beside it: then no link is written, and none is checked."""
        if UNKNOWN in (self.service, self.shard):
            return None
        return xxhash.xxh3_64_intdigest(_KEY.pack(self.service, self.shard))

    def mismatch(self, other: Owner) -> str:
        """The owner of a file of `other`, for an error; empty if it may be this owner."""
        for what, mine, its in (("service", self.service, other.service), ("shard", self.shard, other.shard)):
            if UNKNOWN not in (mine, its) and mine != its:
                return f"is of {what} {its}, and this is {what} {mine}"
        return ""


def owner_of(disk: Disk, path: Path) -> Owner:
    """The owner of the shard's directory `path`, by its name and by the manifest beside it; unknown without one.
    Blocks."""
    _, _, number = path.name.partition("shard-")
    shard = int(number) if number.isdecimal() else UNKNOWN
    try:
        fields: Any = json.loads(bytes(disk.read(path.parent / MANIFEST)))
        return Owner(int(fields["created_ms"]), shard, int(fields["shards"]))
    except (OSError, ValueError, KeyError, TypeError):
        return Owner()  # the supervisor checks the manifest, before any shard starts
