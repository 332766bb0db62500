"""The packet of some messages, as the sockets make it of what they are told to send."""

from __future__ import annotations

from collections.abc import Sequence

from proto.ipc.message import NO_STATUS, Message, Packing, Status


def pack(messages: Sequence[Message], status: Status = NO_STATUS) -> list[bytes]:
    """The frames of a packet with these messages."""
    packing = Packing()
    for message in messages:
        packing.add(message)
    return packing.frames(status)
