"""The job table by itself: what it keeps of reasons. What requests do to it is tested with claims."""

from __future__ import annotations

from proto.model.limits import MAX_REASONS
from shardd.topic.job_states import JobState
from shardd.topic.job_table import Queue


def queue_of(count: int) -> Queue:
    queue = Queue()
    for seq in range(1, count + 1):
        queue.lease([seq], "w", [seq], 1000, "")
        queue.release(seq, queue.jobs[seq], 0, 0)
    return queue


def test_reasons_are_kept_for_so_many_jobs_and_the_oldest_goes() -> None:
    queue = queue_of(MAX_REASONS + 2)
    for seq in range(1, MAX_REASONS + 1):
        queue.explain(seq, "why")
    queue.explain(1, "again")
    queue.explain(MAX_REASONS + 1, "why")
    assert len(queue.reasons) == MAX_REASONS
    assert (queue.reasons.get(1), queue.reasons.get(2)) == ("again", None)


def test_a_clock_that_was_set_back_is_made_up_for_once_and_not_in_a_catalog_that_came_after() -> None:
    queue = queue_of(1)
    queue.apply({"rows": [[1, int(JobState.SCHEDULED), 0, "", 0, 900]], "at": 500})
    for _ in range(2):
        queue.set_back(500, 200, 300)
        assert (queue.jobs[1].until, queue.rows_at) == (700, 300)
    queue.set_back(500, 200, 310)
    assert queue.jobs[1].until == 700


def test_a_reason_goes_with_its_job() -> None:
    queue = queue_of(3)
    for seq in (1, 2, 3):
        queue.explain(seq, "why")
    queue.drop(1)
    queue.settle(3, 0, lambda seq: True)
    assert list(queue.reasons) == [3]


def test_a_catalog_has_the_reasons_of_its_rows_and_of_no_other_job() -> None:
    queue = queue_of(3)
    queue.order(2)
    assert "reasons" not in queue.dump(everything=True)
    queue.explain(1, "one")
    queue.explain(2, "two")
    assert queue.dump(everything=False)["reasons"] == [[2, "two"]]
    back = Queue()
    for _ in range(2):
        back.apply(queue.dump(everything=True))
    assert dict(back.reasons) == {1: "one", 2: "two"}


def test_leases_that_are_forgotten_take_their_reasons_along() -> None:
    queue = queue_of(2)
    queue.order(2)
    queue.explain(1, "one")
    queue.explain(2, "two")
    queue.apply({"forget": True})
    assert dict(queue.reasons) == {2: "two"}
