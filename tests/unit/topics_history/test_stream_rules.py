"""Claims about positions that clients keep: streams and cursors."""

from __future__ import annotations

from tests.support.histories import Story
from topics_history.format import Open, OpenArgs, Topic


def stream(lossy: bool = False) -> Story:
    told = Story(t=Topic(lossy=lossy))
    told.append("a b c", 1)
    told.open(t=0)
    return told


def test_the_frames_of_a_stream_are_the_log() -> None:
    told = stream()
    told.frame("records", 2, "1:a 2:b")
    told.frame("records", 3, "3:c")
    told.frame("caught_up", 3)
    assert told.kinds() == []


def test_a_record_that_a_stream_skips_is_lost() -> None:
    told = stream()
    told.frame("records", 1, "1:a")
    told.frame("records", 3, "3:c")
    assert told.kinds() == ["Lost"]


def test_caught_up_is_true() -> None:
    told = stream()
    told.frame("records", 2, "1:a 2:b")
    told.frame("caught_up", 3)
    assert told.kinds() == ["EarlyCaughtUp"]


def test_a_record_is_repeated_only_after_the_position_of_a_reconnect() -> None:
    told = stream()
    told.frame("records", 3, "1:a 2:b 3:c")
    told.open(t=1)
    told.frame("records", 3, "2:b 3:c")
    assert told.kinds() == []
    told.frame("records", 3, "3:c")
    assert told.kinds() == ["Repeated"]


def test_a_fault_may_set_a_stream_back_and_then_it_skips_nothing_either() -> None:
    for fault, records, kinds in (
        (None, "2:b 3:c", ["Repeated"]),
        ((6, 7), "2:b 3:c", []),
        ((6, 20), "2:b 3:c", []),  # its line is after the frame
        ((6, 20), "2:b", ["EarlyCaughtUp"]),
        ((9, 20), "2:b 3:c", ["Repeated"]),
    ):
        told = stream()
        told.frame("records", 3, "1:a 2:b 3:c", at=(5, 6))
        told.operations[-2].start_ns = 0
        told.add(Open, (7, 8), None, "", args=OpenArgs("s", {"t": 3}))
        told.frame("records", int(records[-3]), records, at=(8, 9))
        told.frame("caught_up", 3, at=(9, 10))
        if fault:
            told.fault(at=fault)
        assert told.kinds() == kinds, (fault, records)


def test_a_stream_that_a_fault_set_back_may_begin_with_a_gap_that_it_had_told() -> None:
    for fault, gap_to, records, kinds in (
        (None, 2, "3:c", ["Repeated"]),
        ((6, 7), 2, "3:c", []),
        ((6, 7), 1, "2:b 3:c", []),
        ((6, 7), 1, "3:c", ["Lost"]),
        ((9, 20), 2, "3:c", ["Repeated"]),
    ):
        told = stream(lossy=True)
        told.frame("records", 3, "1:a 2:b 3:c", at=(5, 6))
        told.operations[-2].start_ns = 0
        told.add(Open, (7, 8), None, "", args=OpenArgs("s", {"t": 3}))
        told.frame("gap", gap_to, gap_from=1, at=(8, 9))
        told.frame("records", 3, records, at=(8, 9))
        told.frame("caught_up", 3, at=(9, 10))
        if fault:
            told.fault(at=fault)
        assert told.kinds() == kinds, (fault, gap_to, records)


def test_what_a_fault_set_back_stays_so_until_the_topic_has_a_frame() -> None:
    for frame, kinds in ((False, []), (True, ["Repeated"])):
        told = stream()
        told.frame("records", 3, "1:a 2:b 3:c", at=(5, 6))
        told.operations[-2].start_ns = 0
        told.fault(at=(7, 8))
        told.add(Open, (9, 10), None, "", args=OpenArgs("s", {"t": 3}))
        if frame:
            told.frame("caught_up", 3, at=(10, 11))
        told.add(Open, (12, 13), None, "", args=OpenArgs("s", {"t": 3}))
        told.frame("records", 3, "2:b 3:c", at=(13, 14))
        assert told.kinds() == kinds


def test_a_reconnect_skips_nothing() -> None:
    told = stream()
    told.frame("records", 1, "1:a")
    told.open(t=1)
    told.frame("records", 3, "3:c")
    assert told.kinds() == ["Lost"]


def test_a_gap_explains_a_hole_of_a_lossy_topic_only() -> None:
    for lossy in (True, False):
        told = stream(lossy)
        told.frame("gap", 2, gap_from=1)
        told.frame("records", 3, "3:c")
        assert ("Lost" in told.kinds()) is not lossy


def test_a_gap_is_not_told_again_on_a_connection() -> None:
    told = stream(lossy=True)
    told.frame("gap", 2, gap_from=1)
    told.frame("gap", 2, gap_from=2)
    assert told.kinds() == ["Repeated"]


def test_a_stream_has_the_topics_that_it_was_opened_for() -> None:
    told = Story()
    told.append("a", 1)
    told.frame("records", 1, "1:a")
    assert told.kinds() == ["NotOpened"]


def test_a_head_that_a_stream_showed_does_not_go_back() -> None:
    told = stream()
    told.frame("records", 3, "1:a 2:b 3:c")
    told.state(2)
    assert told.kinds() == ["HeadBack", "Split", "StaleHead"]


def test_a_cursor_does_not_go_back_in_real_time() -> None:
    told = Story()
    told.put_cursor(5, 5, at=(1, 3))
    told.put_cursor(4, 4, at=(2, 4))
    assert told.kinds() == []
    told.get_cursor(4, at=(5, 6))
    assert told.kinds() == ["CursorBack"]


def test_a_cursor_is_not_before_a_put_that_was_accepted() -> None:
    told = Story()
    told.put_cursor(3, 3)
    told.put_cursor(5, 3)
    assert told.kinds() == ["CursorBack"]


def test_a_cursor_is_where_a_client_put_it_perhaps_without_an_answer() -> None:
    told = Story()
    told.get_cursor(7, at=(1, 5))
    assert told.kinds() == ["CursorBack"]
    told.put_cursor(7, at=(2, 9))
    assert told.kinds() == []
    told.operations[-1].start_ns = 6_000_000
    assert told.kinds() == ["CursorBack"]


def test_a_cursor_that_was_put_does_not_get_lost() -> None:
    told = Story()
    told.get_cursor(0, at=(1, 2))
    told.put_cursor(50, at=(3, 4))  # perhaps not done
    told.get_cursor(0, at=(5, 6))
    told.put_cursor(50, 50, at=(7, 9))
    told.get_cursor(0, at=(8, 10))
    assert told.kinds() == []
    told.get_cursor(0, at=(11, 12))
    assert told.kinds() == ["CursorBack"]
