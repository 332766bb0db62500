"""Claims about streams under faults: processes die, topics are deleted, clients do not read."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.events import Watch, watch, write
from tests.support.service import Service, until


def shard_of(service: Service, topic: str) -> str:
    from proto.model.names import shard_of as index_of

    return f"shard-{index_of(topic, 2):02d}"


def patient_write(service: Service, topic: str, *data: Any) -> None:
    """Write as soon as the shard accepts it. The idempotency key keeps the retries one write."""
    body = {"records": [{"data": d} for d in data], "idempotency_key": f"{topic}-{data[0]}"}

    def written() -> bool:
        try:
            return service.request("POST", f"/v0/topics/{topic}", body)[0] in (200, 201)
        except OSError:
            return False

    until(written, f"a write to {topic}")


def test_a_stream_outlives_its_shard(service: Service) -> None:
    write(service, "a", *range(10))
    wid = watch(service, topics={"a": {}})
    with Watch(service, wid) as stream:
        stream.wait_for("caught-up")
        for round_ in range(2):
            before = service.kill_child(shard_of(service, "a"))
            patient_write(service, "a", 100 + round_, 200 + round_)
            stream.wait_seq("a", 12 + 2 * round_)
            assert service.child(shard_of(service, "a"))["incarnation"] > before
        assert stream.seqs("a") == list(range(1, 15))
        assert "tombstone" not in stream.kinds()
        assert not stream.ended.is_set()


def test_a_topic_made_anew_while_its_shard_was_away_is_told(service: Service) -> None:
    write(service, "a", 1, 2, 3)
    wid = watch(service, topics={"a": {}})
    with Watch(service, wid) as stream:
        stream.wait_for("caught-up")
    assert service.request("DELETE", "/v0/topics/a")[0] == 200
    write(service, "a", "x")
    with Watch(service, wid) as stream:
        told = stream.wait_for("tombstone", "a")
        assert (told["reason"], told["gap_from"], told["gap_to"]) == ("recreated", 1, 1)
        stream.wait_for("caught-up", "a")
        assert stream.seqs("a") == [1]
        after = stream.last_id
    # An id from before the deletion means the beginning of the present topic; a later id means its own position.
    with Watch(service, wid, "eyJhIjoxfQ") as stream:
        stream.wait_for("caught-up", "a")
        assert stream.kinds("a") == ["tombstone", "record", "caught-up"]
        assert stream.seqs("a") == [1]
    with Watch(service, wid, after) as stream:
        stream.wait_for("caught-up", "a")
        assert stream.kinds("a") == ["caught-up"] or stream.seqs("a") == [1]


def test_a_session_outlives_the_gateway_and_nothing_is_missed(service: Service) -> None:
    write(service, "a", *range(50))
    wid = watch(service, topics={"a": {}}, limit=7)
    with Watch(service, wid) as stream:
        stream.wait_seq("a", 50)
        service.kill_child("gateway")
        assert stream.ended.wait(10)
        last_id = stream.last_id
    patient_write(service, "a", "x", "y")
    with Watch(service, wid, last_id) as stream:
        stream.wait_seq("a", 52)
        seqs = stream.seqs("a")
        assert seqs == list(range(seqs[0], 53)), "repeated perhaps, but without holes"


def test_a_session_outlives_the_service_to_the_seq(service: Service) -> None:
    write(service, "a", *range(20))
    wid = watch(service, topics={"a": {}})
    with Watch(service, wid) as stream:
        stream.wait_for("caught-up")
        service.stop()
        stream.wait_for("error")
        assert stream.of("error")[0]["code"] == 503
        assert stream.ended.wait(5)
    service.start()
    write(service, "a", "new")
    with Watch(service, wid) as stream:
        stream.wait_for("caught-up")
        assert stream.seqs("a") == [21]


def test_an_id_is_a_cursor_for_a_new_session(shared: Service) -> None:
    for topic in ("cur:a", "cur:b"):
        write(shared, topic, 1, 2, 3)
    with Watch(shared, watch(shared, topics={"cur:a": {"from_seq": 1}, "cur:b": {"tail": True}})) as stream:
        stream.wait_for("caught-up", "cur:a")
        stream.wait_for("caught-up", "cur:b")
        cursor = stream.last_id
    write(shared, "cur:a", 4)
    with Watch(shared, watch(shared, topics={"cur:a": {}, "cur:b": {}}, cursor=cursor)) as stream:
        stream.wait_for("caught-up", "cur:a")
        stream.wait_for("caught-up", "cur:b")
        assert (stream.seqs("cur:a"), stream.seqs("cur:b")) == ([4], [])
    status, answer = shared.request("POST", "/v0/watch", {"topics": {"cur:a": {}}, "cursor": "?"})
    assert (status, answer["error"]["detail"]) == (400, {"field": "cursor"})


def test_another_connection_takes_a_session_over(shared: Service) -> None:
    write(shared, "over", 1, 2)
    wid = watch(shared, topics={"over": {}})
    with Watch(shared, wid) as first:
        first.wait_for("caught-up")
        with Watch(shared, wid) as second:
            assert first.ended.wait(5)
            assert first.of("error")[-1]["code"] == 409
            write(shared, "over", 3)
            second.wait_seq("over", 3)
            assert second.seqs("over") == [3]
        assert 3 not in first.seqs("over")


def test_a_deleted_topic_ends_and_the_rest_goes_on(shared: Service) -> None:
    write(shared, "del:a", 1)
    write(shared, "del:b", 1)
    wid = watch(shared, topics={"del:a": {}, "del:b": {}})
    with Watch(shared, wid) as stream:
        stream.wait_for("caught-up", "del:a")
        stream.wait_for("caught-up", "del:b")
        shared.request("DELETE", "/v0/topics/del:a")
        assert stream.wait_for("topic-deleted") == {"topic": "del:a", "head_seq": 1, "reason": "deleted"}
        write(shared, "del:a", "again")
        write(shared, "del:b", 2)
        stream.wait_seq("del:b", 2)
        assert stream.seqs("del:a") == [1]


def test_the_switch_from_backlog_to_live_neither_drops_nor_repeats(shared: Service) -> None:
    topic, stop = "switch", threading.Event()
    write(shared, topic, 0)

    def writer() -> None:
        number = 1
        while not stop.is_set():
            write(shared, topic, *range(number, number + 3))
            number += 3

    thread = threading.Thread(target=writer)
    thread.start()
    streams: list[Watch] = []
    try:
        for limit in (1, 3, 256) * 4:
            wid = watch(shared, topics={topic: {}}, limit=limit)
            streams.append(Watch(shared, wid))
            streams[-1].wait_for("record")
    finally:
        stop.set()
        thread.join()
    head = shared.request("GET", f"/v0/topics/{topic}")[1]["head_seq"]
    try:
        for stream in streams:
            stream.wait_seq(topic, head)
            assert stream.seqs(topic) == list(range(1, head + 1))
            for batch in stream.of("record", topic):
                assert batch["to_seq"] == batch["records"][-1]["$seq"]
                assert batch["from_seq"] < batch["records"][0]["$seq"]
    finally:
        for stream in streams:
            stream.close()


SLOW = {
    "TOPICS_WATCH_QUEUE_FRAMES": "8",
    "TOPICS_WATCH_QUEUE_BYTES": "100000",
    "TOPICS_BUFFER_GRACE_MS": "200",
}
PATIENT = SLOW | {"TOPICS_SLOW_CONSUMER_TIMEOUT_MS": "600000"}
"""On a busy machine, the others may need longer than the half minute that a client may be slow."""
BIG = "x" * 20_000


def test_a_slow_client_gets_everything_and_delays_nobody(new_service: Callable[..., Service]) -> None:
    with new_service(**PATIENT) as service:
        write(service, "a", 0)
        slow_wid, fast_wid = watch(service, topics={"a": {}}), watch(service, topics={"a": {}})
        with Watch(service, slow_wid) as slow, Watch(service, fast_wid) as fast:
            slow.wait_for("caught-up")
            slow.gate.clear()
            for number in range(80):
                write(service, "a", *[f"{number}{BIG}"] * 5)
            fast.wait_seq("a", 401)
            assert fast.seqs("a") == list(range(1, 402))
            assert len(slow.seqs("a")) < 400
            beyond = time.monotonic() + 2 * int(SLOW["TOPICS_BUFFER_GRACE_MS"]) / 1000
            until(lambda: time.monotonic() > beyond, "the end of the grace, after which what was queued is let go")
            slow.gate.set()
            slow.wait_seq("a", 401)
            assert slow.seqs("a") == list(range(1, 402))


def test_a_slow_client_of_a_capped_topic_is_told_what_it_lost(new_service: Callable[..., Service]) -> None:
    with new_service(**PATIENT) as service:
        service.request("PUT", "/v0/topics/a", {"cap_records": 10})
        write(service, "a", 0)
        with Watch(service, watch(service, topics={"a": {}})) as slow:
            slow.wait_for("caught-up")
            slow.gate.clear()
            for number in range(120):
                write(service, "a", *[f"{number}{BIG}"] * 5)
            slow.gate.set()
            slow.wait_seq("a", 601)
            expected = 1
            for event in slow.events:
                if event.kind == "tombstone":
                    assert event.data["gap_from"] == expected
                    expected = event.data["gap_to"] + 1
                elif event.kind == "record":
                    for record in event.data["records"]:
                        assert record["$seq"] == expected
                        expected += 1
            assert expected == 602
            assert "tombstone" in slow.kinds()


def test_a_client_that_never_reads_is_ended_and_its_slot_freed(new_service: Callable[..., Service]) -> None:
    with new_service(**SLOW, TOPICS_SLOW_CONSUMER_TIMEOUT_MS="700") as service:
        write(service, "a", 0)
        wid = watch(service, topics={"a": {}})
        with Watch(service, wid) as slow:
            slow.wait_for("caught-up")
            until(lambda: open_streams(service) == 1, "the stream to be counted")
            slow.gate.clear()
            for number in range(80):
                write(service, "a", *[f"{number}{BIG}"] * 5)
            until(lambda: open_streams(service) == 0, "the end of the slow stream")
            slow.gate.set()
            assert slow.ended.wait(10)
            done, last_id = slow.seqs("a"), slow.last_id
        with Watch(service, wid, last_id) as again:
            again.wait_seq("a", 401)
            assert done + again.seqs("a") == list(range(1, 402))


def open_streams(service: Service) -> int:
    import http.client
    import json

    connection = http.client.HTTPConnection("127.0.0.1", service.port, timeout=10)
    try:
        connection.request("GET", "/v0/metrics", headers={"Accept": "application/json"})
        return int(json.loads(connection.getresponse().read())["topics_sse_connections"])
    finally:
        connection.close()


def test_a_session_without_a_stream_ends_and_one_with_a_stream_does_not(new_service: Callable[..., Service]) -> None:
    with new_service(TOPICS_WATCH_SESSION_TTL_MS="600", TOPICS_MAX_WATCH_SESSIONS="2") as service:
        write(service, "a", 0)
        used, idle = watch(service, topics={"a": {}}), watch(service, topics={"a": {}})
        with Watch(service, used) as stream:
            stream.wait_for("caught-up")

            def refusal() -> Any:
                """A try that comes late finds a place, and takes it."""
                status, answer = service.request("POST", "/v0/watch", {"topics": {"a": {}}})
                return answer["error"] if status == 429 else None

            refused = until(refusal, "a session too many")
            assert refused["code"] == "throttled"
            assert refused["detail"] == {"limit": "max_watch_sessions", "max": 2}
            # Each try that succeeds makes a session that ends in turn, so the used session had time to end twice.
            for _ in range(3):
                until(
                    lambda: service.request("POST", "/v0/watch", {"topics": {"a": {}}})[0] == 200,
                    "the end of the idle session",
                )
            with Watch(service, idle) as late:
                assert late.status == 404
            write(service, "a", 1)
            stream.wait_seq("a", 2)
        with Watch(service, used) as stream:
            assert stream.status == 200


def test_clients_that_leave_leave_nothing(shared: Service) -> None:
    write(shared, "leave", 0)
    wids = [watch(shared, topics={"leave": {}}) for _ in range(20)]
    streams = [Watch(shared, wid) for wid in wids]
    for stream in streams:
        stream.wait_for("caught-up")
    until(lambda: open_streams(shared) >= 20, "all streams to be counted")
    for stream in streams:
        stream.close()
    until(lambda: open_streams(shared) == 0, "all streams to be gone")


@pytest.mark.parametrize("consistency", ["eventual", "strong"])
def test_both_consistencies_deliver_every_class(shared: Service, consistency: str) -> None:
    names = {}
    for durability in ("ephemeral", "memory", "disk", "fsync"):
        name = f"class:{consistency}:{durability}"
        shared.request("PUT", f"/v0/topics/{name}", {"durability": durability})
        names[name] = {"tail": True}
    with Watch(shared, watch(shared, topics=names, consistency=consistency)) as stream:
        until(lambda: len(stream.of("caught-up")) == 4, "all caught up")
        for number in range(1, 6):
            for name in names:
                write(shared, name, number)
        for name in names:
            stream.wait_seq(name, 5)
            assert stream.seqs(name) == [1, 2, 3, 4, 5]
