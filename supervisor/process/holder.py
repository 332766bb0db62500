"""Held: what is known of a shard: how far its process here is, and which machine holds it.

Its process here and the roster look at the bucket at different times. Who has seen an earlier term than the other one
says nothing new: taken at its word, it would cut the links to the present holder, with requests on their way.
"""

from __future__ import annotations

from proto.ipc.control import Holder, Progress


class Held:
    phase = "down"
    done_bytes = 0
    total_bytes = 0
    damage = ""
    """In phase `standby`, what is damaged in the bucket."""
    term = 0
    """Of this machine, if it holds the shard."""
    holder = ""
    """In a phase of `HELD_ELSEWHERE`, the address of the machine that holds the shard."""
    holder_link = ("", "")
    """In a phase of `HELD_ELSEWHERE`, where that machine hears this one, and the key of its process there."""
    holder_term = 0
    """The latest term that the shard is known to have had."""

    def begin(self) -> None:
        """A process is started for it."""
        if self.phase != "elsewhere":  # else it has been told, and requests go there meanwhile
            self.holder, self.holder_link = "", ("", "")
        self.phase, self.done_bytes, self.total_bytes, self.term, self.damage = "open", 0, 0, 0, ""

    def serve(self) -> None:
        """Its process serves."""
        self.phase, self.holder, self.holder_link = "ready", "", ("", "")
        self.holder_term = max(self.holder_term, self.term)

    def give_up(self) -> None:
        """No process is wanted for it."""
        self.phase, self.damage, self.term = "elsewhere", "", 0

    def hear(self, message: Progress) -> None:
        """Its process has said how far it is, and which machine holds the shard, or that none is known to."""
        self.phase, self.term, self.damage = message.phase, message.term or self.term, message.damage
        self.done_bytes, self.total_bytes = message.done_bytes, message.total_bytes
        if message.holder_key:
            self.learn(Holder(message.holder, message.holder_at, message.holder_key, message.holder_term))
        else:
            self.holder, self.holder_link = message.holder, ("", "")

    def learn(self, found: Holder) -> bool:
        """Name the holder that was seen in the bucket. Returns whether that changes anything."""
        known, self.holder_term = self.holder_term, max(self.holder_term, found.term)
        named = found.holder, (found.at, found.key)
        if found.term < known or (self.holder, self.holder_link) == named:
            return False
        self.holder, self.holder_link = named
        return True
