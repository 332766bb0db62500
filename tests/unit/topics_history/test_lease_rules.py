"""Claims about the rules of queues. Times are in milliseconds; leases are a second long."""

from __future__ import annotations

import pytest

from tests.support.histories import Story
from topics_history.format import Ack, Extend, Nack, Topic


def queue(*, durable: bool = True) -> Story:
    told = Story(t=Topic("queue", leases_durable=durable))
    told.append("a b", 1, at=(1, 2))
    return told


@pytest.mark.parametrize(
    ("second", "kinds"),
    [
        ((20, 30), ["LeasesOverlap"]),
        ((15, 30), []),
        ((990, 996), ["LeasesOverlap"]),
        ((990, 1012), []),
        ((1100, 1101), []),
    ],
)
def test_a_job_is_not_leased_while_it_is_certainly_held(second: tuple[int, int], kinds: list[str]) -> None:
    told = queue()
    told.claim("1:a:x", at=(10, 16))
    told.claim("1:a:y", at=second)
    assert told.kinds() == kinds


def test_a_job_that_was_given_back_is_free_from_the_start_of_the_request() -> None:
    for outcome in ("ok", "unknown"):
        told = queue()
        told.claim("1:a:x", at=(10, 11))
        told.claim("1:a:y", at=(20, 30))
        told.use(Nack, "1:x", at=(25, 40), outcome=outcome)
        assert told.kinds() == []
        told.operations[-1].start_ns = 31_000_000
        assert told.kinds() == ["LeasesOverlap"] if outcome == "unknown" else ["LeasesOverlap", "StaleLease"]


def test_a_nack_that_failed_gives_nothing_back() -> None:
    told = queue()
    told.claim("1:a:x", at=(10, 11))
    told.use(Nack, "1:x", at=(12, 13), outcome="failed")
    told.claim("1:a:y", at=(20, 30))
    assert told.kinds() == ["LeasesOverlap"]


def test_an_extend_holds_a_job_for_longer() -> None:
    for outcome, kinds in (("ok", ["LeasesOverlap"]), ("unknown", [])):
        told = queue()
        told.claim("1:a:x", at=(10, 11))
        told.use(Extend, "1:x", lease_ms=5000, at=(500, 501), outcome=outcome)
        told.claim("1:a:y", at=(3000, 3001))
        assert told.kinds() == kinds


def test_a_fault_ends_leases_that_are_not_durable() -> None:
    for durable, kinds in ((True, ["LeasesOverlap"]), (False, [])):
        told = queue(durable=durable)
        told.claim("1:a:x", at=(10, 11))
        told.fault(at=(12, 15))
        told.claim("1:a:y", at=(20, 30))
        assert told.kinds() == kinds


def test_a_lease_is_given_once() -> None:
    told = queue()
    told.claim("1:a:x", at=(10, 11))
    told.claim("2:b:x", at=(12, 13))
    assert told.kinds() == ["LeasesOverlap"]


def test_a_completed_job_never_returns() -> None:
    told = queue()
    told.claim("1:a:x", at=(10, 11))
    told.use(Ack, "1:x", at=(12, 13))
    told.claim("1:a:y", at=(13, 30))
    assert told.kinds() == []
    told.claim("1:a:z", at=(2000, 2001))
    assert told.kinds() == ["AckedReturned"]


def test_a_completed_job_is_not_shown_and_another_one_is() -> None:
    told = queue()
    told.claim("1:a:x", at=(10, 11))
    told.use(Ack, "1:x", at=(12, 13))
    told.read("2:b")
    assert told.kinds() == []
    told.read("1:a 2:b")
    assert told.kinds() == ["Undeleted"]
    told = queue()
    told.claim("1:a:x", at=(10, 11))
    told.use(Ack, "1:x", at=(12, 13), skipped=(1,))
    told.read("2:b")
    assert told.kinds() == ["Lost"]


def test_a_job_is_completed_once() -> None:
    told = queue()
    told.claim("1:a:x", at=(10, 11))
    told.use(Ack, "1:x", at=(12, 13))
    told.use(Ack, "1:x", at=(14, 15))
    assert told.kinds() == ["AckedTwice"]


def test_only_the_last_lease_counts() -> None:
    for kind in (Ack, Nack, Extend):
        told = queue()
        told.claim("1:a:x", at=(10, 11))
        told.claim("1:a:y", at=(1100, 1101))
        told.use(kind, "1:x", at=(1200, 1201), lease_ms=10)
        assert "StaleLease" in told.kinds()
        told.operations[-1].result.skipped.append(1)
        assert told.kinds() == []


def test_a_lease_that_no_claim_gave_is_of_no_use() -> None:
    told = queue()
    told.use(Ack, "1:x")
    assert told.kinds() == ["StaleLease"]


def test_a_claim_shows_the_content_of_its_seq() -> None:
    told = queue()
    told.claim("1:b:x")
    assert told.kinds() == ["Changed"]
