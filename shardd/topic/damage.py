"""A topic that is set apart, as the topic itself knows it. What becomes of it is for `shardd.recovery.quarantine`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from proto.format.frame import Buffer, Header

FIRST_LOOK_S = 5.0
"""How long after damage was found nobody looks whether it is gone."""


@dataclass(slots=True)
class Damage:
    """What is wrong with a topic's files, for the log, and when to look again."""

    reason: str
    since_ms: int
    look: Callable[[], object]
    """Raises `SegmentError` while it is."""
    pause_s: float = FIRST_LOOK_S
    due: float = 0.0


@dataclass(slots=True)
class Unloaded:
    """A topic of which only the catalog's `entry` is known. `frames` of the log follow it and what is held already."""

    entry: dict[str, Any]
    folder: Path
    frames: list[Buffer] = field(default_factory=list)

    @property
    def held(self) -> list[Path]:
        """Files of frames that followed the entry, in order."""
        return held_files(self.entry, self.folder)

    def next_file(self) -> Path:
        return self.folder / f"held-{Header(self.frames[0]).frame_no:020d}.log"


def held_files(entry: dict[str, Any], folder: Path) -> list[Path]:
    return [folder / f"held-{number:020d}.log" for number, _ in entry.get("held", ())]
