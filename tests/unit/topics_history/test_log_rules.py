"""Claims about the rules of logs: the smallest history that breaks one is found, its neighbour passes."""

from __future__ import annotations

from tests.support.histories import Story
from topics_history.format import Topic


def test_an_acknowledged_record_that_is_not_shown_is_lost() -> None:
    told = Story()
    told.append("a b", 1)
    told.read("1:a", to=2)
    assert told.kinds() == ["Lost"]
    told.operations[-1].result.records.append((2, "b"))
    assert told.kinds() == []


def test_a_hole_without_a_record_is_a_violation_too() -> None:
    told = Story()
    told.append("a", 0, at=(1, 2))
    told.append("b", 2)
    told.read("2:b")
    assert told.kinds() == ["Hole"]


def test_an_unknown_append_is_there_or_not() -> None:
    for records in ("", "1:a 2:b"):
        told = Story()
        told.append("a b")
        told.read(records, caught_up=True)
        assert told.kinds() == []


def test_an_append_is_there_as_a_whole() -> None:
    told = Story()
    told.append("a b")
    told.append("c", 2)
    told.read("1:a 2:c")
    assert "Changed" in told.kinds()
    told = Story()
    told.append("a b")
    told.read("1:b")
    assert told.kinds() == ["Split"]
    told = Story()
    told.append("a b", 1)
    told.operations[-1].result.last_seq = 3
    assert told.kinds() == ["Split"]


def test_no_head_is_within_an_append_whichever_line_is_first() -> None:
    for head, kinds in ((1, ["Split"]), (2, [])):
        told = Story()
        told.append("a b", 1, at=(1, 2))
        told.state(head, at=(1, 3))
        assert told.kinds() == kinds
        told = Story()
        told.state(head, at=(1, 2))
        told.append("a b", 1, at=(1, 3))
        assert told.kinds() == kinds


def test_a_read_that_says_it_is_at_the_end_is_at_the_head_that_it_shows() -> None:
    told = Story()
    told.append("a", 1, at=(1, 3))
    told.append("b", 2, at=(1, 3))
    told.read("1:a", caught_up=True, head=2, at=(2, 4))
    assert told.kinds() == ["EarlyCaughtUp"]


def test_a_record_that_was_seen_stays() -> None:
    told = Story()
    told.append("a")
    told.read("1:a")
    told.read("", to=1)
    assert told.kinds() == ["Hole"]


def test_a_failed_append_is_nowhere_whichever_line_is_first() -> None:
    for read_at in ((2, 3), (5, 6)):
        told = Story()
        told.append("a", at=(1, 4), outcome="failed")
        told.read("1:a", at=read_at)
        assert told.kinds() == ["FailedPresent"]


def test_an_attempt_that_failed_and_one_under_its_key_that_did_not_are_one_append() -> None:
    told = Story()
    told.append("a", key="k", outcome="failed")
    told.append("a", 1, key="k", at=(3, 6))
    told.read("1:a", at=(3, 4))
    assert told.kinds() == []


def test_attempts_under_one_key_write_once() -> None:
    told = Story()
    told.append("a", 1, key="k")
    told.append("b", 2)
    told.append("a", 1, key="k")
    assert told.kinds() == []
    told.append("a", 3, key="k")
    assert told.kinds() == ["Doubled"]


def test_an_append_that_is_twice_is_doubled() -> None:
    told = Story()
    told.append("a", 1)
    told.read("1:a 2:a")
    assert told.kinds() == ["Doubled"]


def test_a_content_that_no_client_sent_is_invented() -> None:
    told = Story(t=Topic(), u=Topic())
    told.read("1:a")
    assert told.kinds() == ["Invented"]
    told.append("a", 1, topic="u")
    assert told.kinds() == ["Invented"]


def test_a_record_may_be_read_before_its_append_is_answered() -> None:
    told = Story()
    told.read("1:a 2:b", at=(2, 3))
    told.append("a b", 1, at=(1, 4))
    assert told.kinds() == []
    told.operations[-1].result.first_seq, told.operations[-1].result.last_seq = 2, 3
    assert told.kinds() == ["Doubled"]


def test_one_seq_has_one_content() -> None:
    told = Story()
    told.append("a", at=(1, 2))
    told.append("b", at=(1, 2))
    told.read("1:a")
    told.read("1:b")
    assert told.kinds() == ["Changed"]
    told = Story()
    told.append("a", 1, at=(1, 3))
    told.append("b", 1, at=(1, 3))
    assert told.kinds() == ["Changed"]


def test_seqs_follow_real_time_and_concurrent_appends_have_any_order() -> None:
    for at, kinds in (((1, 2), ["OutOfOrder"]), ((1, 3), [])):
        told = Story()
        told.append("b", 2, at=at)
        told.append("a", 1, at=(3, 4), head=2)
        assert told.kinds() == kinds


def test_an_unknown_append_follows_real_time_too() -> None:
    told = Story()
    told.append("b", 2)
    told.append("a")
    told.read("1:a 2:b")
    assert told.kinds() == ["OutOfOrder"]
    told.operations[1].start_ns = 0
    assert told.kinds() == []


def test_a_seq_that_was_shown_is_not_given_again() -> None:
    told = Story()
    told.state(5)
    told.append("a", 5)
    assert told.kinds() == ["OutOfOrder"]


def test_a_head_shows_what_was_acknowledged_before_the_request() -> None:
    for start, kinds in ((3, ["HeadBack", "StaleHead"]), (2, [])):
        told = Story()
        told.append("a", 1, at=(1, 2))
        told.append("b", 2, at=(1, 2))
        told.state(1, at=(start, 4))
        assert told.kinds() == kinds


def test_heads_and_first_seqs_never_go_back() -> None:
    told = Story()
    told.state(5, 3)
    told.state(4, 3)
    assert told.kinds() == ["HeadBack"]
    told = Story()
    told.state(5, 3)
    told.read("", after=5, head=5, floor=2)
    assert told.kinds() == ["HeadBack"]


def test_a_hole_is_explained_by_a_deletion_that_began_before_the_read_ended() -> None:
    for start, kinds in ((3, []), (5, ["Lost"])):
        told = Story()
        told.append("a b c", 1, at=(1, 2))
        told.read("3:c", at=(2, 4))
        told.operations[-1].start_ns = 2_500_000
        told.delete(3, head=3, floor=3, at=(start, 6))
        assert told.kinds() == kinds, start


def test_a_deletion_explains_nothing_after_its_bound_or_of_another_tag() -> None:
    told = Story()
    told.append("a b", 1, tags=["x", "y"])
    told.delete(None, "x", head=2)
    told.read("2:b")
    assert told.kinds() == []
    told.read("", to=2)
    assert told.kinds() == ["Lost"]


def test_a_deletion_explains_nothing_that_was_appended_after_it() -> None:
    told = Story()
    told.append("a", 1)
    told.delete(100, head=1, floor=2)
    told.append("b", 2)
    told.read("", to=2)
    assert told.kinds() == ["Lost"]


def test_an_unknown_deletion_may_explain_a_hole_and_a_failed_one_does_not() -> None:
    for outcome, kinds in (("unknown", []), ("failed", ["Lost"])):
        told = Story()
        told.append("a b", 1, tags=["x", None])
        told.delete(2, outcome=outcome)
        told.delete(None, "x", outcome=outcome)
        told.read("2:b")
        told.read("1:a 2:b")
        assert told.kinds() == kinds


def test_an_append_of_unknown_outcome_may_be_deleted_before_a_client_sees_it() -> None:
    told = Story()
    told.append("a", tags=["x"])
    told.append("b", 2)
    told.delete(None, "x", head=2)
    told.read("2:b")
    assert told.kinds() == []
    told.operations[0].args.tags = ["y"]
    assert told.kinds() == ["Hole"]


def test_deleted_records_stay_deleted() -> None:
    told = Story()
    told.append("a b", 1, tags=["x", "y"])
    told.delete(2, head=2, floor=2, at=(5, 7))
    told.read("1:a 2:b", at=(6, 8))
    assert told.kinds() == []
    told.read("1:a 2:b")
    assert told.kinds() == ["Undeleted"]
    told = Story()
    told.append("a b", 1, tags=["x", "y"])
    told.delete(None, "y", head=2)
    told.read("1:a 2:b")
    assert told.kinds() == ["Undeleted"]


def test_a_second_copy_of_a_record_with_a_tag_is_doubled() -> None:
    told = Story()
    told.append("a", 1, tags=["x"])
    told.append("b", 2, tags=["y"])
    told.delete(None, "x", head=2)
    told.read("2:b 3:a")
    assert told.kinds() == ["Doubled"]


def test_a_gap_explains_a_hole_of_a_lossy_topic_only() -> None:
    for lossy, kinds in ((True, []), (False, ["Hole", "Lost"])):
        told = Story(t=Topic(lossy=lossy))
        told.append("a b c", 1)
        told.read("3:c", gap=(1, 2))
        assert told.kinds() == kinds
    told = Story(t=Topic(lossy=True))
    told.append("a b c", 1)
    told.read("3:c", gap=(1, 1))
    assert told.kinds() == ["Lost"]


def test_records_are_in_order_and_in_the_range() -> None:
    for records, after, to in (("2:b 1:a", 0, 2), ("1:a 2:b", 0, 1), ("1:a", 1, 2), ("", 2, 1)):
        told = Story()
        told.append("a b", 1)
        told.read(records, after=after, to=to)
        assert "NotAPiece" in told.kinds()


def test_a_read_that_says_it_is_at_the_end_has_all_that_was_acknowledged() -> None:
    told = Story()
    told.append("a", 1)
    told.append("b", 2, at=(4, 6))
    told.read("1:a", caught_up=True, at=(5, 7))
    assert told.kinds() == []
    told.read("1:a", caught_up=True)
    assert told.kinds() == ["EarlyCaughtUp"]


def test_a_hole_as_long_as_seqs_go_is_reported_at_once() -> None:
    told = Story()
    told.append("a", 1)
    told.read("1:a", to=2**63 - 1)
    assert told.kinds() == ["Hole"]
