"""The durability classes of topics, and what each promises: one table, and the questions that are asked of it.

A class is a word on the wire, on disk and in the API. Inside it is a `Durability`, and no code compares classes: it
asks what the class promises.

    class        logged    lasts    synced                 seqs are reserved against
    ephemeral    no        no       never                  every stop
    memory       yes       yes      without a promise      nothing: it may use a seq twice
    disk         yes       yes      shortly after the ack  a stop of the machine
    fsync        yes       yes      before the ack         nothing: what has a seq is on the device

The questions are plain attributes of the members, computed once.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Literal

DurabilityName = Literal["ephemeral", "memory", "disk", "fsync"]


class _Synced(Enum):
    NEVER = auto()
    UNPROMISED = auto()
    AFTER_ACK = auto()
    BEFORE_ACK = auto()


class _Reserved(Enum):
    """Which stops let a topic continue after seqs that it reserved before."""

    NOTHING = auto()
    MACHINE_STOPS = auto()
    ANY_STOP = auto()


class Durability(Enum):
    EPHEMERAL = "ephemeral", False, False, _Synced.NEVER, _Reserved.ANY_STOP
    MEMORY = "memory", True, True, _Synced.UNPROMISED, _Reserved.NOTHING
    DISK = "disk", True, True, _Synced.AFTER_ACK, _Reserved.MACHINE_STOPS
    FSYNC = "fsync", True, True, _Synced.BEFORE_ACK, _Reserved.NOTHING

    def __new__(cls, name: DurabilityName, *promises: object) -> Durability:
        member = object.__new__(cls)
        member._value_ = name
        return member

    def __init__(self, name: DurabilityName, logged: bool, lasts: bool, synced: _Synced, reserved: _Reserved) -> None:
        self.logged = logged
        """A change leaves a frame in the log. Otherwise it takes no room on the disk."""
        self.lasts = lasts
        """A restart finds the records again. Otherwise they are reported as lost."""
        self.acks_synced = synced is _Synced.BEFORE_ACK
        """A change waits for the sync before it is visible and acknowledged, and the answer tells how long."""
        self.acks_before_sync = synced is _Synced.AFTER_ACK
        """A change is visible before the sync that is promised for it."""
        self.reaches_device = self.acks_synced or self.acks_before_sync
        """A change is on the device shortly after it was acknowledged at the latest. Before a change that relies on
        it, a sync comes first."""
        self.final_when_visible = self.acks_synced or synced is _Synced.NEVER
        """No later sync makes visible records any safer."""
        self.reserves_seqs = reserved is not _Reserved.NOTHING
        """Acknowledged records may be lost, so their seqs are reserved before."""
        self.reserves_per_boot = reserved is _Reserved.MACHINE_STOPS
        """The reservation counts only after another boot of the machine: until then, the kernel has the records."""

    __hash__ = object.__hash__  # members are one of a kind; that of Enum is slower


BY_NAME = {durability.value: durability for durability in Durability}
