"""Claims about recordings: what a service answers is a history, and so has a verdict, even if it is wrong."""

from __future__ import annotations

import io
from pathlib import Path

from tests.history.inside import Inside, Notes
from tests.history.recording import Answer, answered
from tests.support.fault_disk import FaultDisk
from tests.support.harness import FakeClock, Harness
from tests.support.histories import written
from topics_history import format as f
from topics_history.checker import check_reader


def test_a_cursor_that_is_gone_is_a_broken_promise() -> None:
    clock = FakeClock()
    notes = Notes(clock)
    client = Inside(Harness(FaultDisk(), clock, Path("/data/shard-00")), notes, "c", 1)
    client.configure("t", {})
    client.append("t")
    assert client.get_cursor("t", "c").seq == 0
    assert client.put_cursor("t", "c", 1).seq == 1
    client.shard = Harness(FaultDisk(), clock, Path("/data/shard-00"))
    client.configure("t", {})
    assert client.get_cursor("t", "c").seq == 0
    report = check_reader(f.Reader(io.BytesIO(written({"t": f.Topic()}, [], notes.lines))))
    assert report.counts == {"CursorBack": 1}


def test_the_answer_for_a_cursor_that_is_not_there_says_0() -> None:
    for code, answer in (("cursor_not_found", Answer("ok", 404, {"seq": 0})), ("topic_not_found", None)):
        body = {"error": {"code": code, "message": "", "detail": None}}
        assert answered(404, body) == (answer or Answer("failed", 404, body))


def test_a_read_beyond_an_empty_topic_is_a_broken_promise_and_no_broken_history() -> None:
    clock = FakeClock()
    notes = Notes(clock)
    client = Inside(Harness(FaultDisk(), clock, Path("/data/shard-00")), notes, "c", 1)
    client.configure("t", {})
    assert client.append("t").head_seq == 1
    client.shard = Harness(FaultDisk(), clock, Path("/data/shard-00"))
    client.configure("t", {})
    found = client.read("t", 1)
    assert (found.next_from_seq, found.gap) == (0, None)
    report = check_reader(f.Reader(io.BytesIO(written({"t": f.Topic()}, [], notes.lines))))
    assert report.counts.keys() == {"StaleHead", "HeadBack", "NotAPiece"}
