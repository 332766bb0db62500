"""Claims about logs over real HTTP and through kills: deletions, caps, keys, cursors, classes, compression."""

from __future__ import annotations

import gzip
import http.client
import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.support.service import Service, until

CLASSES = ("ephemeral", "memory", "disk", "fsync")


def write(service: Service, topic: str, *data: Any, **fields: Any) -> Any:
    return service.request("POST", f"/v0/topics/{topic}", {"records": [{"data": d} for d in data], **fields})[1]


def read(service: Service, topic: str, from_seq: int = 0, **fields: Any) -> Any:
    return service.request("POST", f"/v0/topics/{topic}/diff", {"from_seq": from_seq, **fields})[1]


def read_from(service: Service, topic: str, cursor: str) -> Any:
    return service.request("POST", f"/v0/topics/{topic}/diff", {"cursor": cursor})[1]


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
    both = b'{"records":[{"data":4}],"idempotency_key":"of the body"}'
    for expected in (False, True):
        _, _, answer = raw(shared, "POST", "/v0/topics/keyed", both, Idempotency_Key=f"ignored-{expected}")
        assert json.loads(answer)["deduped"] is expected, "the body's key wins over the header's"
    assert shared.request("GET", "/v0/topics/keyed")[1]["count"] == 4
    status, _, answer = raw(shared, "POST", "/v0/topics/keyed", body, Idempotency_Key="k" * 257)
    assert (status, json.loads(answer)["error"]["code"]) == (400, "invalid_request")


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
    assert shared.request("PUT", f"/v0/topics/cur/cursors/{'n' * 255}", {"seq": 1})[0] == 200
    for name in ("n" * 256, "%C3%A9" * 128, ""):
        status, answer = shared.request("PUT", f"/v0/topics/cur/cursors/{name}", {"seq": 1})
        assert (status, answer["error"]["code"]) == (400, "invalid_request")
    assert shared.request("GET", "/v0/topics/cur:none/cursors")[0] == 404
    shared.request("DELETE", "/v0/topics/cur")
    write(shared, "cur", 1)
    assert shared.request("GET", "/v0/topics/cur/cursors")[1]["cursors"] == [], "cursors go with their topic"


class TestCompression:
    def test_a_compressed_body_is_understood(self, shared: Service) -> None:
        body = gzip.compress(b'{"records":[{"data":"packed"}]}')
        assert raw(shared, "POST", "/v0/topics/zip", body, Content_Encoding="gzip")[0] == 201
        assert [r["data"] for r in read(shared, "zip")["records"]] == ["packed"]

    @pytest.mark.parametrize(
        "body",
        [b"no gzip", gzip.compress(b"{}")[:-3], gzip.compress(b'{"records":[{"data":1}]}') + b"rest"],
        ids=["no gzip", "cut short", "more behind it"],  # bodies have the time in them
    )
    def test_a_broken_one_is_400(self, shared: Service, body: bytes) -> None:
        status, _, answer = raw(shared, "POST", "/v0/topics/zip2", body, Content_Encoding="gzip")
        assert (status, json.loads(answer)["error"]["code"]) == (400, "invalid_request")

    def test_a_bomb_is_refused_by_the_size_it_unpacks_to(self, shared: Service) -> None:
        bomb = gzip.compress(b" " * (65 << 20))
        assert len(bomb) < 100_000
        status, _, answer = raw(shared, "POST", "/v0/topics/zip3", bomb, Content_Encoding="gzip")
        assert (status, json.loads(answer)["error"]["code"]) == (413, "payload_too_large")

    def test_a_client_library_sends_and_gets_it(self, shared: Service) -> None:
        """httpx asks for gzip and decompresses it by itself."""
        records = [{"data": {"n": n, "text": "é" * 100}} for n in range(1000)]
        packed = gzip.compress(json.dumps({"records": records}).encode())
        with httpx.Client(base_url=shared.url) as client:
            headers = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
            assert client.post("/v0/topics/zip5", content=packed, headers=headers).status_code == 201
            answer = client.post("/v0/topics/zip5/diff", json={"limit": 1000})
            assert answer.headers["content-encoding"] == "gzip"
            assert answer.num_bytes_downloaded < len(answer.content) / 10
            assert [r["data"] for r in answer.json()["records"]] == [r["data"] for r in records]
            assert client.get("/v0/metrics").headers["content-encoding"] == "gzip"
            missing = client.post("/v0/topics/zip:none/diff", json={})
            assert (missing.status_code, missing.json()["error"]["code"]) == (404, "topic_not_found")

    def test_a_compressed_body_in_chunks_is_understood(self, shared: Service) -> None:
        packed = gzip.compress(b'{"records":[{"data":"chunked"}]}')
        pieces = [packed[at : at + 7] for at in range(0, len(packed), 7)]
        headers = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
        answer = httpx.post(f"{shared.url}/v0/topics/zip6", content=iter(pieces), headers=headers)
        assert answer.status_code == 201
        assert [r["data"] for r in read(shared, "zip6")["records"]] == ["chunked"]

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
    for durability in CLASSES:
        service.request("PUT", f"/v0/topics/{durability}", {"durability": durability})
        answer = write(service, durability, 1, 2, 3)
        assert (answer["performance"]["fsync_ms"] > 0) == (durability == "fsync")
    service.kill_group()
    service.start()
    for durability in ("disk", "fsync"):
        found = read(service, durability)
        assert [(r["$seq"], r["data"]) for r in found["records"]] == [(1, 1), (2, 2), (3, 3)]
        assert found["tombstone"] is None
        assert write(service, durability, "new")["first_seq"] == 4
    gone = read(service, "ephemeral")
    assert gone["records"] == []
    assert gone["tombstone"]["gap_from"] == 1
    assert gone["tombstone"]["gap_to"] >= 3
    assert gone["earliest_seq"] == gone["head_seq"] + 1
    first = write(service, "ephemeral", "new")["first_seq"]
    assert first > 3, "no seq is used twice"
    assert [r["$seq"] for r in read(service, "ephemeral", gone["next_from_seq"])["records"]] == [first]
    for durability in CLASSES:
        config = service.request("GET", f"/v0/topics/{durability}")[1]["config"]
        assert (config["durability"], config["durable"]) == (durability, durability == "fsync")


def test_keys_are_remembered_through_a_kill(new_service: Callable[..., Service]) -> None:
    """A client without a response, because all processes died, repeats its write; no record exists twice."""
    service = new_service().start()
    body = b'{"records":[{"data":"by header"}]}'
    wrote = {name: write(service, name, 1, 2, config={"durability": name}, idempotency_key="once") for name in CLASSES}
    raw(service, "POST", "/v0/topics/disk", body, Idempotency_Key="header")
    service.kill_group()
    service.start()
    for durability in ("disk", "fsync"):
        again = write(service, durability, 1, 2, idempotency_key="once")
        assert (again["deduped"], again["seqs"]) == (True, wrote[durability]["seqs"])
        assert write(service, durability, "other", idempotency_key="twice")["deduped"] is False
    assert json.loads(raw(service, "POST", "/v0/topics/disk", body, Idempotency_Key="header")[2])["deduped"] is True
    assert [r["data"] for r in read(service, "disk")["records"]] == [1, 2, "by header", "other"]
    assert [r["data"] for r in read(service, "fsync")["records"]] == [1, 2, "other"]


def test_deletions_caps_and_cursors_hold_through_a_kill(new_service: Callable[..., Service]) -> None:
    service = new_service().start()
    for durability in ("disk", "fsync"):
        service.request("PUT", f"/v0/topics/{durability}", {"durability": durability})
        records = [{"data": n, "tag": f"room:{n % 2}"} for n in range(10)]
        service.request("POST", f"/v0/topics/{durability}", {"records": records})
        service.request("POST", f"/v0/topics/{durability}/delete", {"before_seq": 4})
        service.request("POST", f"/v0/topics/{durability}/delete", {"match": "room:1"})
        service.request("PUT", f"/v0/topics/{durability}/cursors/team%2Fa", {"seq": 6})
    service.request("PUT", "/v0/topics/capped", {"cap_records": 2})
    write(service, "capped", *range(5))
    service.kill_group()
    service.start()
    for durability in ("disk", "fsync"):
        found = read(service, durability)
        assert [r["data"] for r in found["records"]] == [4, 6, 8]
        assert (found["tombstone"], found["earliest_seq"], found["head_seq"]) == (None, 5, 10)
        cursor = service.request("GET", f"/v0/topics/{durability}/cursors/team%2Fa")[1]
        assert (cursor["cursor"], cursor["seq"], cursor["lag"]) == ("team/a", 6, 4)
        assert [r["data"] for r in read_from(service, durability, "team/a")["records"]] == [6, 8]
    found = read(service, "capped")
    assert [r["data"] for r in found["records"]] == [3, 4]
    assert (found["tombstone"]["reason"], found["tombstone"]["gap_to"]) == ("cap", 3)


def test_checkpoints_under_load_lose_nothing(new_service: Callable[..., Service]) -> None:
    service = new_service(
        TOPICS_CHECKPOINT_BYTES="65536", TOPICS_WAL_SEGMENT_BYTES="65536", TOPICS_SEGMENT_MAX_EVENTS="100"
    ).start()
    for i in range(300):
        write(service, f"t{i % 4}", *[f"{i}:{k}" + "x" * 200 for k in range(10)])
        if i % 100 == 99:
            until(lambda: list(service.data_dir.glob("shard-*/topics/*/seg-*.data")), "a checkpoint")
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


Sample = tuple[str, tuple[tuple[str, str], ...]]


def samples(service: Service) -> dict[Sample, float]:
    status, headers, body = raw(service, "GET", "/v0/metrics")
    assert (status, headers["Content-Type"]) == (200, "text/plain; version=0.0.4; charset=utf-8")
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(body.decode())
        for sample in family.samples
    }


class TestMetrics:
    def test_topics_classes_cursors_and_the_log_are_counted(self, new_service: Callable[..., Service]) -> None:
        service = new_service().start()
        for durability in CLASSES:
            service.request("PUT", f"/v0/topics/{durability}", {"durability": durability})
            write(service, durability, *range(5))
        service.request("POST", "/v0/topics/disk/delete", {"before_seq": 3})
        service.request("PUT", "/v0/topics/fsync/cursors/team%2F%22a%22", {"seq": 2})
        found = samples(service)
        assert (found["topics_topics", ()], found["topics_records_live", ()]) == (4, 18)
        assert found["topics_bytes_live", ()] == sum(
            service.request("GET", f"/v0/topics/{name}?touch=false")[1]["bytes"] for name in CLASSES
        )
        for durability in CLASSES:
            assert found["topics_topics_by_class", (("class", durability),)] == 1
            assert found["topics_topic_head_seq", (("topic", durability),)] == 5
        assert found["topics_topic_earliest_seq", (("topic", "disk"),)] == 3
        assert found["topics_topic_records_live", (("topic", "disk"),)] == 3
        assert found["topics_cursor_lag", (("cursor", 'team/"a"'), ("topic", "fsync"))] == 3
        assert (found["topics_topic_metrics_truncated", ()], found["topics_cursor_metrics_truncated", ()]) == (0, 0)
        assert found["topics_wal_frames_total", ()] >= 9
        assert 0 < found["topics_wal_batches_total", ()] <= found["topics_wal_frames_total", ()]
        assert found["topics_wal_bytes_written_total", ()] > 0
        assert found["topics_wal_fsyncs_total", ()] > 0
        assert found["topics_wal_queue_depth_peak", ()] >= 1
        assert (found["topics_wal_read_only", ()], found["topics_wal_submit_full_total", ()]) == (0, 0)
        assert ("topics_wal_queue_depth", ()) in found
        assert ("topics_wal_rotations_total", ()) in found
        counts = [value for (name, _), value in found.items() if name == "topics_wal_fsync_latency_us_bucket"]
        assert counts == sorted(counts)
        assert counts[-1] == found["topics_wal_fsync_latency_us_count", ()] > 0
        assert found["topics_wal_fsync_latency_us_sum", ()] > 0

    def test_the_json_form_has_the_same_metrics(self, shared: Service) -> None:
        write(shared, "both", 1, 2)
        names = {name for name, _ in samples(shared)}
        status, headers, body = raw(shared, "GET", "/v0/metrics", Accept="application/json")
        assert (status, headers["Content-Type"]) == (200, "application/json")
        content = json.loads(body)
        histogram = {"topics_wal_fsync_latency_us"}
        assert {n for n in names if not n.startswith(tuple(histogram))} | histogram == set(content) - {
            name for name, value in content.items() if value == []
        }
        assert {"labels": {"topic": "both"}, "value": 2} in content["topics_topic_head_seq"]
        assert set(content["topics_wal_fsync_latency_us"]) == {"buckets", "sum", "count"}

    def test_metrics_of_single_topics_and_cursors_are_bounded(self, new_service: Callable[..., Service]) -> None:
        service = new_service(TOPICS_METRICS_MAX_TOPICS="3").start()
        for number in range(5):
            write(service, f"t{number}", number)
            service.request("PUT", f"/v0/topics/t{number}/cursors/c", {"seq": 0})
        found = samples(service)
        assert found["topics_topics", ()] == 5
        for name in ("topics_topic_head_seq", "topics_topic_bytes_live", "topics_cursor_lag"):
            assert [dict(labels)["topic"] for n, labels in found if n == name] == ["t0", "t1", "t2"]
        assert (found["topics_topic_metrics_truncated", ()], found["topics_cursor_metrics_truncated", ()]) == (1, 1)
        for number in (1, 3):
            service.request("DELETE", f"/v0/topics/t{number}")
        found = samples(service)
        assert (found["topics_topic_metrics_truncated", ()], found["topics_cursor_metrics_truncated", ()]) == (0, 0)


def test_an_orderly_restart_moves_no_head_and_a_router_copies_no_gap(new_service: Callable[..., Service]) -> None:
    service = new_service().start()
    service.request("PUT", "/v0/topics/volatile", {"durability": "ephemeral"})
    service.request("PUT", "/v0/topics/copy", {})
    service.request("PUT", "/v0/routers/r", {"source": "volatile", "dest": "copy"})
    write(service, "volatile", 1, 2, 3)
    until(lambda: len(read(service, "copy")["records"]) == 3, "the copies")
    service.stop()
    service.start()
    caught_up = read(service, "volatile", 3)
    assert (caught_up["head_seq"], caught_up["tombstone"], caught_up["records"]) == (3, None, [])
    gap = read(service, "volatile", 1)["tombstone"]
    assert (gap["gap_from"], gap["gap_to"], gap["reason"], gap["cause"]) == (2, 3, "cap", "restart")
    assert write(service, "volatile", 4)["first_seq"] == 4
    until(lambda: read(service, "copy")["head_seq"] >= 4, "the next copy")
    copies = read(service, "copy")
    assert ([r["data"] for r in copies["records"]], copies["head_seq"]) == ([1, 2, 3, 4], 4)
