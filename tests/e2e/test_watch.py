"""Claims about watches: the contract's promises on sessions and event streams, read by httpx-sse.

test_live_robust has the claims about processes that die and clients that are slow.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from time import monotonic, time
from typing import Any

import httpx
import pytest

from tests.support.events import Watch, watch, write
from tests.support.service import Service, until
from tests.support.sse import decoded, encoded, events


def configure(service: Service, topic: str, **config: Any) -> None:
    status, answer = service.request("PUT", f"/v0/topics/{topic}", config)
    assert status in (200, 201), answer


# Making a session


def test_the_answer_says_where_each_topic_is_and_where_the_watch_begins(shared: Service) -> None:
    write(shared, "made:a", 1, 2, 3)
    configure(shared, "made:cap", cap_records=2)
    write(shared, "made:cap", 1, 2, 3, 4, 5)
    status, made = shared.request(
        "POST", "/v0/watch", {"topics": {"made:a": {"from_seq": 1}, "made:cap": {"tail": True, "from_seq": 1}}}
    )
    assert status == 200
    assert re.fullmatch(r"wid_[A-Za-z0-9_-]{22,}", made["wid"])
    assert made["stream_url"] == f"/v0/watch/{made['wid']}"
    assert made["session_ttl_ms"] == 300_000
    assert made["topics"] == {
        "made:a": {"from_seq": 1, "head_seq": 3, "earliest_seq": 1},
        "made:cap": {"from_seq": 5, "head_seq": 5, "earliest_seq": 4},
    }
    assert made["performance"]["server_total_ms"] >= 0


def test_wids_are_not_alike(shared: Service) -> None:
    write(shared, "alike", 1)
    wids = {watch(shared, topics={"alike": {}}) for _ in range(20)}
    assert len(wids) == 20
    assert len({wid[:12] for wid in wids}) == 20


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"topics": {}},
        {"topics": ["bad"]},
        {"topics": "bad"},
        {"topics": {"bad": 1}},
        {"topics": {"bad": {"from_seq": "1"}}},
        {"topics": {"bad": {"from_seq": -1}}},
        {"topics": {"bad": {"tail": 1}}},
        {"topics": {"no spaces": {}}},
        {"topics": {"bad": {}}, "limit": "1"},
        {"topics": {"bad": {}}, "max_batch_bytes": 1.5},
        {"topics": {"bad": {}}, "heartbeat_ms": "1000"},
        {"topics": {"bad": {}}, "include_data": "no"},
        {"topics": {"bad": {}}, "consistency": "sometimes"},
        {"topics": {f"bad:{number}": {} for number in range(257)}},
        "[1]",
        "{",
    ],
)
def test_a_malformed_wish_is_400_before_any_stream(shared: Service, body: Any) -> None:
    write(shared, "bad", 1)
    status, answer = shared.request("POST", "/v0/watch", body)
    assert (status, answer["error"]["code"]) == (400, "invalid_request")


def test_numbers_out_of_range_are_clamped_and_what_is_unknown_is_named(shared: Service) -> None:
    write(shared, "ranges", 1, 2)
    for number in (-1, -(10**30), 10**30):
        body = {"topics": {"ranges": {}}, "limit": number, "max_batch_bytes": number, "heartbeat_ms": number}
        status, answer = shared.request("POST", "/v0/watch", {**body, "colour": 1, "sizes": [1]})
        assert (status, answer.get("ignored")) == (200, ["colour", "sizes"])
        with events(shared, answer["wid"]) as stream:
            stream.upto("caught-up")
            assert [len(each["records"]) for each in stream.of("record")] == ([1, 1] if number < 0 else [2])
    assert "ignored" not in shared.request("POST", "/v0/watch", {"topics": {"ranges": {}}})[1]


def test_unknown_topics_are_404_or_left_out_when_lenient(shared: Service) -> None:
    write(shared, "known", 1)
    both = {"topics": {"known": {}, "unknown": {}}}
    status, answer = shared.request("POST", "/v0/watch", both)
    assert (status, answer["error"]["code"]) == (404, "topic_not_found")
    status, answer = shared.request("POST", "/v0/watch?lenient=true", both)
    assert status == 200
    assert list(answer["topics"]) == ["known"]
    with events(shared, answer["wid"]) as stream:
        stream.upto("caught-up", "known")
        assert {data["topic"] for kind in ("record", "caught-up") for data in stream.of(kind)} == {"known"}


def test_tail_is_fixed_when_the_session_is_made(shared: Service) -> None:
    write(shared, "tail", "before")
    wid = watch(shared, topics={"tail": {"tail": True}})
    write(shared, "tail", "between")
    with events(shared, wid) as stream:
        stream.upto_seq("tail", 2)
        write(shared, "tail", "after")
        stream.upto_seq("tail", 3)
        assert [record["data"] for record in stream.records("tail")] == ["between", "after"]


# The stream


def test_the_stream_begins_with_its_headers_and_one_retry(shared: Service) -> None:
    write(shared, "open", 1)
    with events(shared, watch(shared, topics={"open": {}})) as stream:
        headers = stream.response.headers
        assert headers["content-type"] == "text/event-stream; charset=utf-8"
        assert headers["cache-control"] == "no-store"
        assert headers["x-accel-buffering"] == "no"
        assert headers["connection"].lower() == "keep-alive"
        assert stream.next().retry == 2000
        stream.upto("caught-up")
        write(shared, "open", 2)
        stream.upto_seq("open", 2)
        assert [event.retry for event in stream.seen[1:]] == [None] * (len(stream.seen) - 1)


def test_records_come_in_batches_that_say_where_they_are(shared: Service) -> None:
    write(shared, "batch", *range(10))
    with events(shared, watch(shared, topics={"batch": {}}, limit=3)) as stream:
        stream.upto("caught-up")
        batches = stream.of("record")
        assert [len(batch["records"]) for batch in batches] == [3, 3, 3, 1]
        assert [(batch["from_seq"], batch["to_seq"], batch["head_seq"]) for batch in batches] == [
            (0, 3, 10), (3, 6, 10), (6, 9, 10), (9, 10, 10)
        ]  # fmt: skip
        assert [record["data"] for record in stream.records("batch")] == list(range(10))
        assert all(abs(record["$ts"] - time() * 1000) < 600_000 for record in stream.records("batch"))
        assert stream.of("caught-up") == [{"topic": "batch", "head_seq": 10}]


def test_limits_out_of_range_are_clamped_and_a_frame_has_one_record_at_least(shared: Service) -> None:
    write(shared, "clamp", *["x" * 1000] * 5)
    many = watch(shared, topics={"clamp": {}}, limit=10**12, max_batch_bytes=10**12, heartbeat_ms=10**12)
    with events(shared, many) as stream:
        stream.upto("caught-up")
        assert [len(batch["records"]) for batch in stream.of("record")] == [5]
    for fields, sizes in (({"max_batch_bytes": 1}, [1] * 5), ({"limit": 0, "max_batch_bytes": 0}, [5])):
        with events(shared, watch(shared, topics={"clamp": {}}, **fields)) as stream:
            stream.upto("caught-up")
            assert [len(batch["records"]) for batch in stream.of("record")] == sizes


def test_what_is_shown_of_a_record(shared: Service) -> None:
    record = {"data": {"n": 1}, "meta": {"m": 2}, "tag": "t:1", "node": "n1"}
    status, _ = shared.request("POST", "/v0/topics/shown", {"records": [record, {"data": 2}]})
    assert status in (200, 201)
    expected = {
        (): ({"$node": "n1", "data": {"n": 1}, "meta": {"m": 2}}, {"data": 2}),
        (("include_meta", False),): ({"$node": "n1", "data": {"n": 1}}, {"data": 2}),
        (("include_tags", True),): ({"$node": "n1", "$tag": "t:1", "data": {"n": 1}, "meta": {"m": 2}}, {"data": 2}),
        (("include_data", False), ("include_tags", True)): ({"$node": "n1", "$tag": "t:1"}, {}),
        (("include_data", False), ("include_meta", True)): ({"$node": "n1"}, {}),
    }
    for fields, shown in expected.items():
        with events(shared, watch(shared, topics={"shown": {}}, **dict(fields))) as stream:
            stream.upto("caught-up")
            found = stream.records("shown")
            assert [record.pop("$seq") for record in found] == [1, 2]
            assert all(record.pop("$ts") for record in found)
            assert tuple(found) == shown


def test_data_with_newlines_comes_as_it_was_written(shared: Service) -> None:
    body = '{"records": [{"data": {\n"a":\r\n1.0,\r"b": "x\\ny"}, "meta": {\n"k"\n:\n1e3}}]}'
    assert shared.request("POST", "/v0/topics/newline", body)[0] in (200, 201)
    with events(shared, watch(shared, topics={"newline": {}})) as stream:
        event = stream.upto_seq("newline", 1)
        assert re.search(r'"a":\s*1\.0\s*,\s*"b":\s*"x\\ny"', event.data)
        assert re.search(r'"k"\s*:\s*1e3', event.data)
        assert stream.records("newline")[0]["data"] == {"a": 1.0, "b": "x\ny"}
        stream.upto("caught-up")
        assert set(stream.kinds()) == {"message", "record", "caught-up"}, "the message is the retry field"


def test_a_node_does_not_get_its_own_records_and_moves_past_them(shared: Service) -> None:
    records = [{"data": number, "node": f"n{number % 2}"} for number in range(6)]
    assert shared.request("POST", "/v0/topics/node", {"records": records})[0] in (200, 201)
    wid = watch(shared, topics={"node": {}}, node="n1")
    with events(shared, wid) as stream:
        caught_up = stream.upto("caught-up")
        assert [record["data"] for record in stream.records("node")] == [0, 2, 4]
        assert decoded(caught_up.id) == {"node": 6}
        write(shared, "node", "mine", node="n1")
        write(shared, "node", "other", node="n0")
        stream.upto_seq("node", 8)
        assert stream.seqs("node") == [1, 3, 5, 8]


def test_heartbeats_come_when_nothing_else_does(shared: Service) -> None:
    write(shared, "hb", 1)
    with Watch(shared, watch(shared, topics={"hb": {}}, heartbeat_ms=1)) as stream:
        stream.wait_for("caught-up")
        began = monotonic()
        until(lambda: stream.comments, "a heartbeat")
        first = monotonic() - began
        assert 0.8 < first < 10, "1 ms is clamped to 1 s"
        assert all(re.fullmatch(r"hb \d{13}", comment) for comment in stream.comments)
        assert abs(int(stream.comments[0][3:]) / 1000 - time()) < 60
        beats = len(stream.comments)
        assert re.search(rb"(^|\n\n): hb \d+\n\n", stream.raw), "a comment by itself, without an id"
        # While records come more often than heartbeats would, there are none.
        seq, quiet = 1, 0.0
        until_at = monotonic() + 1.8
        while monotonic() < until_at:
            sent = monotonic()
            write(shared, "hb", "x")
            seq += 1
            stream.wait_seq("hb", seq)
            quiet = max(quiet, monotonic() - sent)
        if quiet < 0.5:  # otherwise the machine was too slow for a result
            assert len(stream.comments) <= beats + 1


def test_caught_up_comes_once_when_the_stream_becomes_live(shared: Service) -> None:
    write(shared, "live:a", *range(5))
    configure(shared, "live:empty")
    with events(shared, watch(shared, topics={"live:a": {}, "live:empty": {}}, limit=2)) as stream:
        for _ in range(2):
            stream.upto("caught-up")
        seen = {data["topic"]: data["head_seq"] for data in stream.of("caught-up")}
        assert seen == {"live:a": 5, "live:empty": 0}
        for number in range(3):
            write(shared, "live:a", number)
            write(shared, "live:empty", number)
            stream.upto_seq("live:empty", number + 1)
        assert len(stream.of("caught-up")) == 2


def test_an_old_cursor_gets_a_tombstone_first_and_its_id_is_past_the_gap(shared: Service) -> None:
    configure(shared, "old", cap_records=3)
    write(shared, "old", *range(10))
    wid = watch(shared, topics={"old": {"from_seq": 2}})
    with events(shared, wid) as stream:
        assert stream.next().retry == 2000
        told = stream.next()
        assert told.event == "tombstone"
        assert stream.of("tombstone") == [
            {
                "topic": "old",
                "reason": "from_seq_too_old",
                "gap_from": 3,
                "gap_to": 7,
                "earliest_seq": 8,
                "head_seq": 10,
            }
        ]
        assert decoded(told.id) == {"old": 7}
        stream.upto("caught-up")
        assert stream.seqs("old") == [8, 9, 10]
    with events(shared, wid, **{"Last-Event-ID": told.id}) as stream:
        stream.upto("caught-up")
        assert stream.of("tombstone") == []
        assert stream.seqs("old") == [8, 9, 10]


def test_records_lost_to_a_cap_while_watched_are_told(shared: Service) -> None:
    configure(shared, "capped", cap_records=10)
    with events(shared, watch(shared, topics={"capped": {}})) as stream:
        stream.upto("caught-up")
        write(shared, "capped", *range(25))  # 15 of them are gone as soon as they are there
        stream.upto_seq("capped", 25)
        (told,) = stream.of("tombstone")
        assert (told["reason"], told["gap_from"], told["gap_to"], told["earliest_seq"]) == ("cap", 1, 15, 16)
        assert stream.seqs("capped") == list(range(16, 26))


def test_deleted_records_are_passed_over_in_silence(shared: Service) -> None:
    write(shared, "deleted", *range(6))
    odd = {"records": [{"data": 6, "tag": "odd"}]}
    assert shared.request("POST", "/v0/topics/deleted", odd)[0] == 200
    write(shared, "deleted", 7, 8, 9)
    assert shared.request("POST", "/v0/topics/deleted/delete", {"before_seq": 5})[0] == 200
    assert shared.request("POST", "/v0/topics/deleted/delete", {"match": ["tag", "Eq", "odd"]})[0] == 200
    with events(shared, watch(shared, topics={"deleted": {}})) as stream:
        stream.upto("caught-up")
        assert stream.of("tombstone") == []
        assert stream.seqs("deleted") == [5, 6, 8, 9, 10]


def test_a_topic_that_is_deleted_ends_for_the_stream_and_the_others_go_on(shared: Service) -> None:
    write(shared, "ends:a", 1, 2)
    write(shared, "ends:b", 1)
    with events(shared, watch(shared, topics={"ends:a": {}, "ends:b": {}})) as stream:
        stream.upto("caught-up")
        stream.upto("caught-up")
        assert shared.request("DELETE", "/v0/topics/ends:a")[0] == 200
        told = stream.upto("topic-deleted")
        assert stream.of("topic-deleted") == [{"topic": "ends:a", "head_seq": 2, "reason": "deleted"}]
        assert decoded(told.id)["ends:a"] == 2
        write(shared, "ends:a", "again")
        write(shared, "ends:b", 2)
        stream.upto_seq("ends:b", 2)
        assert stream.seqs("ends:a") == [1, 2]


def test_a_session_is_told_once_that_a_topic_was_deleted(shared: Service) -> None:
    for topic in ("once:a", "once:b", "once:c"):
        write(shared, topic, 1)
    wid = watch(shared, topics={"once:a": {}, "once:b": {}, "once:c": {}})
    with events(shared, wid) as stream:
        for _ in range(3):
            stream.upto("caught-up")
        before = stream.seen[-1].id
        for topic in ("once:a", "once:c"):
            assert shared.request("DELETE", f"/v0/topics/{topic}")[0] == 200
            told = stream.upto("topic-deleted", topic).id

    def kinds_until_live(**headers: str) -> list[tuple[str, str]]:
        with events(shared, wid, **headers) as stream:
            stream.upto("caught-up", "once:b")
            # When this record arrives, the stream has read every topic once and sent its frames.
            stream.upto_seq("once:b", write(shared, "once:b", "last")["last_seq"])
            return [(kind, data["topic"]) for kind in ("topic-deleted", "record") for data in stream.of(kind)]

    deleted = [("topic-deleted", "once:a"), ("topic-deleted", "once:c")]
    assert not set(deleted) & set(kinds_until_live())
    assert not set(deleted) & set(kinds_until_live(**{"Last-Event-ID": told}))
    # A client that returns with an id from before the deletions was not told of them.
    assert set(deleted) <= set(kinds_until_live(**{"Last-Event-ID": before}))
    # A new topic of the same name is another topic, so the client is told of its deletion too.
    write(shared, "once:a", "again")
    with events(shared, wid) as stream:
        stream.upto("tombstone", "once:a", lambda data: data["reason"] == "recreated")
        stream.upto("caught-up", "once:a")
        assert shared.request("DELETE", "/v0/topics/once:a")[0] == 200
        stream.upto("topic-deleted", "once:a")
    assert not set(deleted) & set(kinds_until_live())


# Ids, and where a stream begins


def test_every_id_is_the_map_of_all_cursors_at_that_moment(shared: Service) -> None:
    for topic in ("ids:a", "ids:b"):
        write(shared, topic, *range(4))
    at = {"ids:a": 0, "ids:b": 2}
    wid = watch(shared, topics={topic: {"from_seq": seq} for topic, seq in at.items()}, limit=1)
    with events(shared, wid) as stream:
        stream.upto("caught-up")
        stream.upto("caught-up")
        for event in stream.seen[1:]:
            data = json.loads(event.data)
            if event.event == "record":
                assert data["from_seq"] == at[data["topic"]]
                at[data["topic"]] = data["to_seq"]
            assert decoded(event.id) == at
            assert "=" not in event.id


def test_ids_of_many_topics_bring_every_one_of_them_back(shared: Service) -> None:
    topics = [f"many:{number}" for number in range(100)]
    for topic in topics:
        write(shared, topic, 1, 2)
    wid = watch(shared, topics={topic: {} for topic in topics})
    with events(shared, wid) as stream:
        for _ in topics:
            stream.upto("caught-up")
        assert all(stream.seqs(topic) == [1, 2] for topic in topics)
        after = next(event.id for event in stream.seen if event.event == "record")
        first = stream.of("record")[0]["topic"]
        assert len(after) < 4096
    with events(shared, wid, **{"Last-Event-ID": after}) as stream:
        for _ in topics:
            stream.upto("caught-up")
        assert {topic for topic in topics if stream.seqs(topic) == [1, 2]} == set(topics) - {first}
        assert stream.seqs(first) == []


def test_a_session_remembers_and_an_id_only_takes_it_back(shared: Service) -> None:
    write(shared, "resume", *range(10))
    wid = watch(shared, topics={"resume": {"from_seq": 3}}, limit=2)
    with events(shared, wid) as stream:
        stream.upto("caught-up")
        assert stream.seqs("resume") == [4, 5, 6, 7, 8, 9, 10]
        early = next(event.id for event in stream.seen if event.event == "record")
    for ident, expected in (
        ("", []),  # the session's own position
        (early, [6, 7, 8, 9, 10]),  # taken back to it
        (encoded({"resume": 99}), []),  # never forward
        (encoded({"resume": 8, "another": 1}), [9, 10]),
        ("", []),
    ):
        headers = {"Last-Event-ID": ident} if ident else {}
        with events(shared, wid, **headers) as stream:
            stream.upto("caught-up")
            assert stream.seqs("resume") == expected, ident
    write(shared, "resume", "new")
    with events(shared, wid) as stream:
        stream.upto("caught-up")
        assert stream.seqs("resume") == [11]


# Refusals


def test_an_id_that_no_stream_could_have_made_is_400_whatever_else_the_request_says(shared: Service) -> None:
    write(shared, "forged", 1)
    wid = watch(shared, topics={"forged": {}})
    nowhere = "wid_AAAAAAAAAAAAAAAAAAAAAA"
    impossible = ("rubbish", "%00", "c.", "p.k", encoded({"forged": -1}), encoded({"forged": 2**63}))
    pids = shared.pids()
    for ident in (*impossible, encoded({"forged": 1.0}), encoded({"another": 1})):
        with httpx.stream("GET", f"{shared.url}/v0/watch/{wid}", headers={"Last-Event-ID": ident}) as answer:
            assert (answer.status_code, json.loads(answer.read())["error"]["code"]) == (400, "invalid_request"), ident
        for fields in (
            {"topics": {"forged": {}}},
            {"prefix": "forged", "limit": 5},
            {"prefix": "", "topics": {"no": {}}},
        ):
            if ident == encoded({"another": 1}) and fields.get("prefix") == "":
                continue  # a topic of the prefix that was deleted
            status, made = shared.request("POST", "/v0/watch", {**fields, "cursor": ident})
            assert (status, made["error"]["code"]) == (400, "invalid_request"), (ident, fields)
    for ident in impossible:
        answer = httpx.get(f"{shared.url}/v0/watch/{nowhere}", headers={"Last-Event-ID": ident, "Accept": "text/html"})
        assert answer.status_code == 400
    assert shared.pids() == pids


def test_a_beginning_far_ahead_is_that_of_an_earlier_topic(shared: Service) -> None:
    write(shared, "ahead", 1)
    write(shared, "beside", 1)
    wid = watch(shared, topics={"ahead": {"from_seq": 2**64 - 1}, "beside": {}})
    with events(shared, wid) as stream:
        assert stream.upto("tombstone", "ahead").event == "tombstone"
        stream.upto("caught-up", "ahead")
        stream.upto("caught-up", "beside")
        idents = {event.id for event in stream.seen if event.id}
    for ident in idents:
        with events(shared, wid, **{"Last-Event-ID": ident}) as stream:
            stream.upto("caught-up")


def test_an_unknown_session_is_404_whatever_it_looks_like(shared: Service) -> None:
    for wid in ("wid_AAAAAAAAAAAAAAAAAAAAAA", "wid_1", "w", "", "%C3%A9", "x" * 1000, "a%2Fb"):
        for accept in ("*/*", "application/json"):
            answer = httpx.get(f"{shared.url}/v0/watch/{wid}", headers={"Accept": accept})
            assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found"), wid


def test_an_unknown_session_is_404_for_a_client_that_asks_for_json(shared: Service) -> None:
    for wid in ("wid_AAAAAAAAAAAAAAAAAAAAAA", "never-a-session"):
        answer = httpx.get(f"{shared.url}/v0/watch/{wid}", headers={"Accept": "application/json"})
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found"), wid


def test_only_an_accept_without_event_streams_is_406(shared: Service) -> None:
    write(shared, "accept", 1)
    wid = watch(shared, topics={"accept": {}})
    for accept in ("application/json", "text/html, application/json;q=0.9", "text/event-stream;q=0, application/json"):
        answer = httpx.get(f"{shared.url}/v0/watch/{wid}", headers={"Accept": accept})
        assert (answer.status_code, answer.json()["error"]["code"]) == (406, "not_acceptable"), accept
    for accept in ("text/event-stream", "*/*", "text/*", "application/json, text/event-stream;q=0.1"):
        with Watch(shared, wid, Accept=accept) as stream:
            assert stream.status == 200, accept
    with Watch(shared, wid) as stream:
        assert stream.status == 200


# Keys

FULL, OTHER, READER, WRITER, TENANT = "full+key/%41", "other", "reader", "writer", "tenant"
KEYS = f"{FULL},{OTHER},{READER}:read,{WRITER}:write,{TENANT}:read+write:t42:"


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    directory: Path = tmp_path_factory.mktemp("keyed")
    with Service(directory, TOPICS_API_KEYS=KEYS, TOPICS_MAX_SSE_CONNECTIONS_PER_KEY="2") as running:
        with client(running) as http:
            for topic in ("t42:a", "plain"):
                assert http.post(f"/v0/topics/{topic}", json={"records": [{"data": 1}]}).is_success
        yield running


def client(service: Service, key: str = FULL) -> httpx.Client:
    return httpx.Client(base_url=service.url, headers={"Authorization": f"Bearer {key}"} if key else {}, timeout=10)


def outcome(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["code"] if answer.is_error else ""


def begin(service: Service, wid: str, key: str = "", **params: Any) -> tuple[int, str]:
    """Try to open the stream; return the `outcome` of the response."""
    with client(service, key) as http, http.stream("GET", f"/v0/watch/{wid}", params=params) as answer:
        if answer.is_error:
            answer.read()
        return outcome(answer)


def test_who_may_make_a_session(keyed: Service) -> None:
    body = {"topics": {"t42:a": {}}}
    for key, topics, expected in (
        ("", ["t42:a"], (401, "unauthorized")),
        ("unknown", ["t42:a"], (401, "unauthorized")),
        (WRITER, ["t42:a"], (403, "forbidden")),
        (TENANT, ["t42:a", "plain"], (403, "forbidden")),
        (TENANT, ["t42:a"], (200, "")),
        (READER, ["t42:a", "plain"], (200, "")),
    ):
        with client(keyed, key) as http:
            answer = http.post("/v0/watch", json={"topics": {topic: {} for topic in topics}})
            assert outcome(answer) == expected, (key, topics)
    with client(keyed, "") as http:
        assert outcome(http.post("/v0/watch", params={"token": READER}, json=body)) == (401, "unauthorized")
    with client(keyed, TENANT) as http:
        hidden = http.post("/v0/watch", params={"lenient": "true"}, json={"topics": {"elsewhere": {}}})
        assert outcome(hidden) == (403, "forbidden"), "leniency tells nothing of what is outside the prefixes"


def test_a_wid_is_of_no_use_without_the_key_that_made_it(keyed: Service) -> None:
    with client(keyed, FULL) as http:
        wid = http.post("/v0/watch", json={"topics": {"plain": {}}}).json()["wid"]
        assert outcome(http.get("/v0/topics", params={"token": "x"})) == (200, "")
    for key in ("", "unknown", OTHER, READER):
        assert begin(keyed, wid, key) == (401, "unauthorized"), key
        if key:
            assert begin(keyed, wid, token=key) == (401, "unauthorized"), key
    assert begin(keyed, wid, FULL) == (200, "")
    assert begin(keyed, wid, token=FULL) == (200, ""), "escapes are decoded"
    assert begin(keyed, wid, token=[FULL, OTHER]) == (200, ""), "the first one counts"
    assert begin(keyed, wid, token=[OTHER, FULL]) == (401, "unauthorized")
    with client(keyed, "") as http:
        assert outcome(http.get("/v0/topics", params={"token": FULL})) == (401, "unauthorized")


def test_a_key_may_have_so_many_streams(keyed: Service) -> None:
    with ExitStack() as opened:
        http = opened.enter_context(client(keyed, READER))
        wids = [http.post("/v0/watch", json={"topics": {"plain": {}}}).json()["wid"] for _ in range(3)]
        first = opened.enter_context(http.stream("GET", f"/v0/watch/{wids[0]}"))
        opened.enter_context(http.stream("GET", f"/v0/watch/{wids[1]}"))
        refused = http.get(f"/v0/watch/{wids[2]}")
        assert outcome(refused) == (429, "throttled")
        assert refused.json()["error"]["detail"] == {"limit": "max_sse_connections_per_key", "max": 2}
        assert int(refused.headers["retry-after"]) >= 1
        with client(keyed, OTHER) as other:
            wid = other.post("/v0/watch", json={"topics": {"plain": {}}}).json()["wid"]
        assert begin(keyed, wid, OTHER) == (200, ""), "another key has its own"
        first.close()
        until(lambda: begin(keyed, wids[2], READER) == (200, ""), "the place of the stream that was closed")
