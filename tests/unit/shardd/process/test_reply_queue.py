"""Replies of a shard: no more than the asker's window is on its way."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proto.ipc.message import Message, Parked, Reply
from proto.ipc.send_window import SMALL_BYTES
from shardd.process.reply_queue import Replies


class Asker:
    """Receives replies on demand and reports them with `Taken`, as `proto.ipc.link` does."""

    def __init__(self, most: int) -> None:
        self.now = 0.0
        self.most = most
        self.got: list[Message] = []
        self.unread: list[Message] = []
        self.untold = 0
        self.refuses = False
        self.replies = Replies(self._send, most, lambda: self.now)

    def _send(self, message: Message, peer: bytes) -> int:
        sent = Reply(message.id) if self.refuses else message
        self.unread.append(sent)
        return len(sent.body)

    def reply(self, number: int, size: int) -> None:
        self.replies.send(b"peer", Reply(number, b"x" * size))

    def take(self) -> bool:
        taken, self.unread[:] = list(self.unread), []
        self.got += taken
        self.untold += sum(len(each.body) for each in taken if len(each.body) > SMALL_BYTES)
        if self.untold * 8 < self.most:
            return False
        told, self.untold = self.untold, 0
        return self.replies.taken(b"peer", told)


@given(st.lists(st.one_of(st.none(), st.integers(0, 150_000)), max_size=80))
def test_replies_arrive_in_order_and_no_more_than_the_window_is_on_its_way(events: list[int | None]) -> None:
    asker = Asker(100_000)
    count = 0
    for size in events:
        if size is None:
            asker.take()
        else:
            asker.reply(count, size)
            count += 1
        on_way = [len(each.body) for each in asker.unread if len(each.body) > SMALL_BYTES]
        assert sum(on_way) <= 100_000 or len(on_way) <= 1 or sum(on_way) - on_way[-1] < 100_000 // 8
    for _ in range(count + 1):
        asker.take()
    assert [each.id for each in asker.got] == list(range(count))
    assert not asker.replies.full(b"peer")


def test_replies_that_are_refused_at_the_last_moment_take_no_room_in_the_window() -> None:
    """A holder whose term is not renewed refuses what it has made; the asker takes no bytes of that."""
    asker = Asker(100_000)
    asker.refuses = True
    for number in range(20):
        asker.reply(number, 90_000)
        asker.take()
    assert [each.id for each in asker.got] == list(range(20))
    asker.refuses = False
    asker.reply(20, 90_000)
    assert not asker.replies.full(b"peer")


def test_an_asker_that_takes_nothing_is_forgotten() -> None:
    asker = Asker(100_000)
    for number in range(3):
        asker.reply(number, 90_000)
    assert asker.replies.full(b"peer")
    assert asker.replies.forget_silent(60) == []
    asker.now = 61
    assert asker.replies.forget_silent(60) == [b"peer"]
    assert not asker.replies.full(b"peer")


@pytest.mark.parametrize("size", [10, 90_000])
def test_an_asker_that_takes_everything_is_never_full(size: int) -> None:
    asker = Asker(100_000)
    for number in range(100):
        asker.reply(number, size)
        assert not asker.replies.full(b"peer")
        asker.take()
    assert len(asker.got) == 100


class Resized(Asker):
    """Hears of another size when it reads the packet that states it."""

    def resize(self, most: int) -> None:
        self.replies.most = most
        self.unread.append(Parked(most))  # in place of the packet
        self.replies.taken(b"peer", 0)

    def take(self) -> bool:
        for each in [each for each in self.unread if isinstance(each, Parked)]:
            self.most = each.id
            self.unread.remove(each)
        return super().take()


@given(st.lists(st.one_of(st.none(), st.integers(0, 150_000), st.sampled_from([-65_536, -100_000, -1 << 20]))))
def test_no_reply_stays_for_ever_however_the_size_changes(events: list[int | None]) -> None:
    asker = Resized(100_000)
    count = 0
    for event in events:
        if event is None:
            asker.take()
        elif event < 0:
            asker.resize(-event)
        else:
            asker.reply(count, event)
            count += 1
    for _ in range(count + 1):
        asker.take()
    assert [each.id for each in asker.got] == list(range(count))
    assert not asker.replies.full(b"peer")
