"""What a log promises, over real HTTP and through kills: deletions, caps, keys, cursors, classes, compression."""

from __future__ import annotations

import gzip
import http.client
import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.service import Service


def write(service: Service, topic: str, *data: Any, **fields: Any) -> Any:
    return service.request("POST", f"/v0/topics/{topic}", {"records": [{"data": d} for d in data], **fields})[1]


def read(service: Service, topic: str, from_seq: int = 0, **fields: Any) -> Any:
    return service.request("POST", f"/v0/topics/{topic}/diff", {"from_seq": from_seq, **fields})[1]


def raw(service: Service, method: str, path: str, body: bytes = b"", **headers: str) -> Any:
    connection = http.client.HTTPConnection("127.0.0.1", service.port, timeout=20)
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    connection.request(method, path, body, {"Content-Type": "application/json", **named})
    response = connection.getresponse()
    content = response.read()
    connection.close()
    return response.status, response.headers, content


def test_deletions_by_seq_and_by_tag(shared: Service) -> None:
    records = [{"data": i, "tag": f"room:{i % 3}"} for i in range(9)]
    shared.request("POST", "/v0/topics/del", {"records": records})
    status, answer = shared.request("POST", "/v0/topics/del/delete", {"match": ["tag", "Eq", "room:1"]})
    assert (status, answer["deleted"], answer["count"], answer["earliest_seq"]) == (200, 3, 6, 1)
    answer = shared.request("POST", "/v0/topics/del/delete", {"before_seq": 4})[1]
    assert (answer["deleted"], answer["earliest_seq"]) == (2, 4)
    answer = shared.request("POST", "/v0/topics/del/delete", {"match": ["tag", "Glob", "room:*"], "before_seq": 7})[1]
    assert answer["deleted"] == 2
    found = read(shared, "del")
    assert [r["$seq"] for r in found["records"]] == [7, 9]
    assert (found["tombstone"], found["caught_up"]) == (None, True)
    for body in (
        {},
        {"match": ["tag", "Like", "x"]},
        {"match": ["tag", "Glob", "a*b*"]},
        {"match": ["node", "Eq", "x"]},
    ):
        status, answer = shared.request("POST", "/v0/topics/del/delete", body)
        assert (status, answer["error"]["code"]) == (400, "invalid_request")
    assert shared.request("POST", "/v0/topics/del:none/delete", {"before_seq": 1})[0] == 404


def test_a_cap_evicts_and_says_so(shared: Service) -> None:
    shared.request("PUT", "/v0/topics/capped", {"cap_records": 3})
    write(shared, "capped", *range(10))
    found = read(shared, "capped", 2)
    assert [r["data"] for r in found["records"]] == [7, 8, 9]
    assert found["tombstone"] == {
        "gap_from": 3,
        "gap_to": 7,
        "reason": "cap",
        "missed_estimate": 5,
        "earliest_seq": 8,
        "head_seq": 10,
    }


def test_a_full_topic_that_refuses_is_422(shared: Service) -> None:
    shared.request("PUT", "/v0/topics/full", {"cap_records": 2, "discard": "reject"})
    write(shared, "full", 1, 2)
    status, answer = shared.request("POST", "/v0/topics/full", {"records": [{"data": 3}]})
    assert (status, answer["error"]["code"]) == (422, "topic_full")
    assert answer["error"]["detail"]["head_seq"] == 2
    status, answer = shared.request("POST", "/v0/topics/full", {"records": [{"data": 3}] * 3})
    assert (status, answer["error"]["code"]) == (400, "record_too_large")


def test_expired_records_leave_a_tombstone(shared: Service) -> None:
    shared.request("PUT", "/v0/topics/short", {"ttl_ms": 1})
    write(shared, "short", 1, 2)
    shared._until(lambda: shared.request("GET", "/v0/topics/short")[1]["count"] == 0, "expiry", 5)
    found = read(shared, "short")
    assert (found["records"], found["tombstone"]["reason"], found["earliest_seq"]) == ([], "ttl", 3)


def test_keys_make_retries_safe_in_body_and_header(shared: Service) -> None:
    first = write(shared, "keyed", 1, 2, idempotency_key="k")
    again = write(shared, "keyed", 1, 2, idempotency_key="k")
    assert (again["seqs"], again["deduped"], first["deduped"]) == (first["seqs"], True, False)
    body = b'{"records":[{"data":3}]}'
    for expected in (False, True):
        _, _, answer = raw(shared, "POST", "/v0/topics/keyed", body, Idempotency_Key="header")
        assert json.loads(answer)["deduped"] is expected
    assert shared.request("GET", "/v0/topics/keyed")[1]["count"] == 3


def test_named_cursors(shared: Service) -> None:
    write(shared, "cur", *range(5))
    path = "/v0/topics/cur/cursors/team%2Fa%20b"
    status, answer = shared.request("PUT", path, {"seq": 3})
    assert (status, answer["cursor"], answer["seq"], answer["lag"]) == (200, "team/a b", 3, 2)
    assert shared.request("PUT", path, {"seq": 1})[1]["seq"] == 3
    assert shared.request("PUT", path, {"seq": 1, "force": True})[1]["seq"] == 1
    assert shared.request("GET", path)[1]["seq"] == 1
    found = shared.request("POST", "/v0/topics/cur/diff", {"cursor": "team/a b"})[1]
    assert [r["$seq"] for r in found["records"]] == [2, 3, 4, 5]
    shared.request("PUT", "/v0/topics/cur/cursors/other", {"seq": 0})
    status, page = shared.request("GET", "/v0/topics/cur/cursors?page_size=1")
    assert [c["cursor"] for c in page["cursors"]] == ["other"]
    status, page = shared.request("GET", f"/v0/topics/cur/cursors?page_size=1&cursor={page['next_cursor']}")
    assert [c["cursor"] for c in page["cursors"]] == ["team/a b"]
    assert "next_cursor" not in page
    assert shared.request("DELETE", path)[1]["deleted"] is True
    status, answer = shared.request("GET", path)
    assert (status, answer["error"]["code"]) == (404, "cursor_not_found")
    assert shared.request("PUT", path, {"seq": 99})[0] == 400


class TestCompression:
    def test_a_compressed_body_is_understood(self, shared: Service) -> None:
        body = gzip.compress(b'{"records":[{"data":"packed"}]}')
        assert raw(shared, "POST", "/v0/topics/zip", body, Content_Encoding="gzip")[0] == 201
        assert [r["data"] for r in read(shared, "zip")["records"]] == ["packed"]

    @pytest.mark.parametrize(
        "body", [b"no gzip", gzip.compress(b"{}")[:-3], gzip.compress(b'{"records":[{"data":1}]}') + b"rest"]
    )
    def test_a_broken_one_is_400(self, shared: Service, body: bytes) -> None:
        status, _, answer = raw(shared, "POST", "/v0/topics/zip2", body, Content_Encoding="gzip")
        assert (status, json.loads(answer)["error"]["code"]) == (400, "invalid_request")

    def test_a_bomb_is_refused_by_the_size_it_unpacks_to(self, shared: Service) -> None:
        bomb = gzip.compress(b" " * (65 << 20))
        assert len(bomb) < 100_000
        status, _, answer = raw(shared, "POST", "/v0/topics/zip3", bomb, Content_Encoding="gzip")
        assert (status, json.loads(answer)["error"]["code"]) == (413, "payload_too_large")

    def test_other_codings_are_415(self, shared: Service) -> None:
        assert raw(shared, "POST", "/v0/topics/zip4", b"x", Content_Encoding="br")[0] == 415

    def test_answers_are_compressed_for_who_asks(self, shared: Service) -> None:
        write(shared, "long", *["x" * 100] * 50)
        status, headers, body = raw(shared, "POST", "/v0/topics/long/diff", b"{}", Accept_Encoding="gzip, br")
        assert (status, headers["Content-Encoding"], headers["Vary"]) == (200, "gzip", "Accept-Encoding")
        assert len(json.loads(gzip.decompress(body))["records"]) == 50
        for accept in ("identity", "gzip;q=0", ""):
            _, headers, body = raw(shared, "POST", "/v0/topics/long/diff", b"{}", Accept_Encoding=accept)
            assert headers["Content-Encoding"] is None
            assert len(json.loads(body)["records"]) == 50
        _, headers, _ = raw(shared, "GET", "/v0/topics/long", Accept_Encoding="gzip")
        assert headers["Content-Encoding"] is None, "a short answer is sent as it is"


def test_each_class_keeps_what_it_promises_through_a_kill(new_service: Callable[..., Service]) -> None:
    service = new_service().start()
    for durability in ("ephemeral", "memory", "disk", "fsync"):
        service.request("PUT", f"/v0/topics/{durability}", {"durability": durability})
        answer = write(service, durability, 1, 2, 3, idempotency_key="once")
        assert (answer["performance"]["fsync_ms"] > 0) == (durability == "fsync")
    service.request("PUT", "/v0/topics/disk/cursors/me", {"seq": 2})
    service.request("POST", "/v0/topics/fsync/delete", {"before_seq": 2})
    service.kill_group()
    service.start()
    assert [r["$seq"] for r in read(service, "disk")["records"]] == [1, 2, 3]
    assert [r["$seq"] for r in read(service, "fsync")["records"]] == [2, 3]
    assert write(service, "disk", 1, 2, 3, idempotency_key="once")["deduped"] is True
    assert service.request("GET", "/v0/topics/disk/cursors/me")[1]["seq"] == 2
    gone = read(service, "ephemeral")
    assert gone["records"] == []
    assert gone["tombstone"]["gap_from"] == 1
    assert gone["tombstone"]["gap_to"] >= 3
    assert write(service, "ephemeral", "new")["first_seq"] > 3
    config = service.request("GET", "/v0/topics/ephemeral")[1]["config"]
    assert (config["durability"], config["durable"]) == ("ephemeral", False)


def test_checkpoints_under_load_lose_nothing(new_service: Callable[..., Service]) -> None:
    service = new_service(
        TOPICS_CHECKPOINT_BYTES="65536", TOPICS_WAL_SEGMENT_BYTES="65536", TOPICS_SEGMENT_MAX_EVENTS="100"
    ).start()
    for i in range(300):
        write(service, f"t{i % 4}", *[f"{i}:{k}" + "x" * 200 for k in range(10)])
        if i % 100 == 99:
            service.kill_group()
            service.start()
    for topic in range(4):
        data: list[str] = []
        cursor = 0
        while True:
            found = read(service, f"t{topic}", cursor, limit=1000)
            data += [r["data"].rstrip("x") for r in found["records"]]
            cursor = found["next_from_seq"]
            if found["caught_up"]:
                break
        assert data == [f"{i}:{k}" for i in range(topic, 300, 4) for k in range(10)]
    segments = list(service.data_dir.glob("shard-*/topics/*/seg-*.data"))
    assert segments, "no checkpoint was made"
