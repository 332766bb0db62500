"""Held: what a child knows of the machine that holds its shard.

Its process here and the roster look at the bucket at different times. Who has seen an earlier term than the other one
says nothing new: taken at its word, it would cut the links to the present holder, with requests on their way.
"""

from __future__ import annotations

from proto.ipc.control import Holder, Progress


class Held:
    holder = ""
    """In a phase of `HELD_ELSEWHERE`, the address of the machine that holds the shard."""
    holder_link = ("", "")
    """In a phase of `HELD_ELSEWHERE`, where that machine hears this one, and the key of its process there."""
    holder_term = 0
    """The latest term that the shard is known to have had."""

    def hear(self, message: Progress) -> None:
        """The shard's process has said which machine holds it, or that none is known to."""
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
