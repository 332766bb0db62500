"""The damage of a quarantined topic, as stored in the topic. `shardd.recovery.quarantine` decides what follows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from proto.format.buffer import Buffer
from proto.format.frame import Header

FIRST_LOOK_S = 5.0
"""First pause in seconds between attempts to read a damaged topic."""


@dataclass(slots=True)
class Damage:
    """The damage of a topic's files: the reason for the log, and the time of the next attempt to read them."""

    reason: str
    since_ms: int
    look: Callable[[], object]
    """Tries the read again. Raises `SegmentError` while the damage persists."""
    pause_s: float = FIRST_LOOK_S
    due: float = 0.0


@dataclass(slots=True)
class Unloaded:
    """A topic of which only the catalog's `entry` is known. `frames` of the log follow the entry and the held
    frames."""

    entry: dict[str, Any]
    folder: Path
    frames: list[Buffer] = field(default_factory=list)
    owes_seqs: bool = False
    """Whether the topic has to give seqs up before it is written to, as only a start does."""

    @property
    def held(self) -> list[Path]:
        """Files of held frames, in order."""
        return held_files(self.entry, self.folder)

    def next_file(self) -> Path:
        return self.folder / f"held-{Header(self.frames[0]).frame_no:020d}.log"


def held_files(entry: dict[str, Any], folder: Path) -> list[Path]:
    return [folder / f"held-{number:020d}.log" for number, _ in entry.get("held", ())]
