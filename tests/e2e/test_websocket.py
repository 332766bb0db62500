"""Claims about the WebSocket: the contract's promises, checked with the `websockets` client."""

from __future__ import annotations

import json
import socket as sockets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from tests.support.events import write
from tests.support.service import Service, until

PATIENCE_S = 10


class Talk:
    """The client's end of a socket. `got` holds every message received."""

    def __init__(self, connection: ClientConnection) -> None:
        self.connection = connection
        self.got: list[Any] = []

    def say(self, op: str, **fields: Any) -> None:
        self.connection.send(json.dumps({"op": op, **fields}))

    def next(self) -> Any:
        self.got.append(json.loads(self.connection.recv(timeout=PATIENCE_S)))
        return self.got[-1]

    def upto(self, op: str, where: Callable[[Any], bool] = lambda frame: True) -> Any:
        while True:
            frame = self.next()
            if frame["op"] == op and where(frame):
                return frame

    def ask(self, op: str, **fields: Any) -> Any:
        """Send a command and read up to its answer."""
        fields.setdefault("request_id", f"r{len(self.got)}")
        self.say(op, **fields)
        while True:
            frame = self.next()
            if frame.get("request_id") == fields["request_id"]:
                return frame

    def records(self, topic: str) -> list[Any]:
        frames = (f for f in self.got if f["op"] == "record" and f["topic"] == topic)
        return [record for frame in frames for record in frame["records"]]

    def seqs(self, topic: str) -> list[int]:
        return [record["$seq"] for record in self.records(topic)]


@contextmanager
def talk(service: Service, key: str = "", **options: Any) -> Iterator[Talk]:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    url = f"ws://127.0.0.1:{service.port}/v0/ws"
    with connect(url, additional_headers=headers, proxy=None, close_timeout=5, **options) as connection:
        yield Talk(connection)


def closed(connection: ClientConnection) -> int:
    """Return the server's close code, skipping the messages before it."""
    while True:
        try:
            connection.recv(timeout=PATIENCE_S)
        except ConnectionClosed as end:
            said = end.rcvd
            break
    assert said is not None, "the connection just ended"
    return said.code


def test_a_subscription_tells_where_it_begins_then_delivers(shared: Service) -> None:
    write(shared, "sub", 1, 2, 3)
    with talk(shared) as client:
        answer = client.ask("subscribe", topic="sub", from_seq=1, request_id="s1")
        assert answer == {
            "op": "subscribed",
            "request_id": "s1",
            "topics": {"sub": {"from_seq": 1, "head_seq": 3, "earliest_seq": 1}},
        }
        assert client.got == [answer], "nothing overtakes the answer"
        frame = client.next()
        assert [record.pop("data") for record in frame["records"]] == [2, 3]
        assert [sorted(record) for record in frame.pop("records")] == [["$seq", "$ts"]] * 2
        assert frame == {"op": "record", "topic": "sub", "from_seq": 1, "to_seq": 3, "head_seq": 3}
        assert client.next() == {"op": "caught_up", "topic": "sub", "head_seq": 3}
        write(shared, "sub", 4)
        frame = client.next()
        assert (frame["from_seq"], frame["to_seq"], frame["records"][0]["data"]) == (3, 4, 4)


def test_a_map_of_topics_each_from_its_own_place(shared: Service) -> None:
    write(shared, "map:a", 1, 2)
    write(shared, "map:b", 1, 2)
    with talk(shared) as client:
        topics = {"map:a": {"tail": True}, "map:b": {"from_seq": 1}}
        answer = client.ask("subscribe", topics=topics, include_data=False)
        assert {name: each["from_seq"] for name, each in answer["topics"].items()} == {"map:a": 2, "map:b": 1}
        client.upto("caught_up")
        client.upto("caught_up")
        assert client.seqs("map:a") == []
        assert client.seqs("map:b") == [2]
        assert "data" not in client.records("map:b")[0]
        write(shared, "map:a", 3)
        client.upto("record", lambda frame: frame["topic"] == "map:a")
        assert client.seqs("map:a") == [3]


def test_the_fields_of_a_watch_hold_for_a_subscription(shared: Service) -> None:
    records = [{"data": n, "node": f"n{n % 2}", "tag": "t", "meta": {"m": n}} for n in range(4)]
    assert shared.request("POST", "/v0/topics/fields", {"records": records})[0] in (200, 201)
    with talk(shared) as client:
        client.ask("subscribe", topic="fields", node="n1", limit=1, include_tags=True, include_meta=False)
        client.upto("caught_up")
        assert all(len(frame["records"]) <= 1 for frame in client.got if frame["op"] == "record")
        found = client.records("fields")
        assert [(record["$seq"], record["$tag"], record["$node"]) for record in found] == [
            (1, "t", "n0"),
            (3, "t", "n0"),
        ]
        assert not any("meta" in record for record in found)


def test_after_unsubscribe_nothing_more_comes(shared: Service) -> None:
    write(shared, "un:a", 1)
    write(shared, "un:b", 1)
    with talk(shared) as client:
        client.ask("subscribe", topics={"un:a": {"tail": True}, "un:b": {"tail": True}})
        answer = client.ask("unsubscribe", topic="un:a", request_id="u1")
        assert answer == {"op": "unsubscribed", "request_id": "u1", "topics": ["un:a"]}
        assert client.ask("unsubscribe", topic="un:a")["topics"] == []
        write(shared, "un:a", 2)
        write(shared, "un:b", 2)
        client.upto("record", lambda frame: frame["topic"] == "un:b")
        client.ask("ping")
        assert client.seqs("un:a") == []
        client.ask("subscribe", topic="un:a", from_seq=1)
        client.upto("caught_up", lambda frame: frame["topic"] == "un:a")
        assert client.seqs("un:a") == [2], "subscribed again, from where it was left"


def test_publish_is_acked_and_kept(shared: Service) -> None:
    with talk(shared) as client:
        records = [{"node": "u1", "tag": "t", "meta": {"m": 1}, "data": {"packet": 1}}, {"data": 2}]
        ack = client.ask("publish", topic="pub", records=records, request_id="p1")
        assert (ack["op"], ack["request_id"], ack["topic"]) == ("ack", "p1", "pub")
        assert (ack["last_seq"], ack["head_seq"]) == (2, 2)
        assert "fsync_ms" in ack["performance"] or "server_total_ms" in ack["performance"]
        quiet = client.ask("publish", topic="pub", records=[{"data": 3}], return_seqs=False)
        assert quiet["last_seq"] == 3
        assert "seqs" not in quiet
    status, found = shared.request("POST", "/v0/topics/pub/diff", {"from_seq": 0, "include_tags": True})
    assert status == 200
    assert [record["data"] for record in found["records"]] == [{"packet": 1}, 2, 3]
    assert [found["records"][0][name] for name in ("$node", "$tag", "meta")] == ["u1", "t", {"m": 1}]


def test_publish_once_under_an_idempotency_key(shared: Service) -> None:
    with talk(shared) as client:
        acks = [client.ask("publish", topic="idem", records=[{"data": 1}], idempotency_key="k") for _ in range(2)]
        assert [ack["last_seq"] for ack in acks] == [1, 1]
    status, answer = shared.request("POST", "/v0/topics/idem", {"records": [{"data": 1}], "idempotency_key": "k"})
    assert (status, answer["last_seq"]) == (200, 1), "the same write by HTTP"


def test_publish_creates_as_it_is_told(shared: Service) -> None:
    with talk(shared) as client:
        refused = client.ask("publish", topic="create:no", records=[{"data": 1}], create=False)
        assert (refused["op"], refused["code"]) == ("error", "topic_not_found")
        client.ask("publish", topic="create:cap", records=[{"data": 1}], config={"cap_records": 2})
        client.ask("publish", topic="create:cap", records=[{"data": 2}, {"data": 3}])
        client.ask("subscribe", topic="create:cap")
        assert client.next() == {
            "op": "tombstone",
            "topic": "create:cap",
            "reason": "from_seq_too_old",
            "gap_from": 1,
            "gap_to": 1,
            "earliest_seq": 2,
            "head_seq": 3,
        }
        client.upto("caught_up")
        assert client.seqs("create:cap") == [2, 3]


def test_a_deleted_topic_is_told(shared: Service) -> None:
    write(shared, "gone", 1)
    with talk(shared) as client:
        client.ask("subscribe", topic="gone")
        client.upto("caught_up")
        assert shared.request("DELETE", "/v0/topics/gone")[0] == 200
        assert client.next() == {"op": "topic_deleted", "topic": "gone", "head_seq": 1, "reason": "deleted"}


def test_ping_is_answered(shared: Service) -> None:
    with talk(shared) as client:
        client.say("ping", request_id="ping-1")
        assert client.next() == {"op": "pong", "request_id": "ping-1"}
        client.say("ping")
        assert client.next() == {"op": "pong"}
        assert client.connection.ping().wait(PATIENCE_S), "and the protocol's own ping"


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("{", "invalid_request"),
        ("[]", "invalid_request"),
        ("{}", "invalid_request"),
        ('{"op": "dance"}', "invalid_request"),
        ('{"op": "subscribe"}', "invalid_request"),
        ('{"op": "subscribe", "topic": "no spaces"}', "invalid_request"),
        ('{"op": "subscribe", "topic": "err", "limit": "1"}', "invalid_request"),
        ('{"op": "subscribe", "topic": "nowhere"}', "topic_not_found"),
        ('{"op": "publish", "topic": "err"}', "invalid_request"),
        ('{"op": "publish", "topic": "err", "records": []}', "invalid_request"),
        ('{"op": "publish", "topic": "err", "records": [{"data": 1, "meta": 2}]}', "invalid_request"),
    ],
)
def test_a_command_that_fails_says_why_and_the_socket_stays(shared: Service, text: str, code: str) -> None:
    with talk(shared) as client:
        client.connection.send(text)
        answer = client.next()
        assert (answer["op"], answer["code"]) == ("error", code)
        assert answer["message"]
        assert client.ask("ping")["op"] == "pong"


def test_an_error_names_the_command_it_is_about(shared: Service) -> None:
    with talk(shared) as client:
        assert client.ask("subscribe", topic="nowhere", request_id="p2")["code"] == "topic_not_found"
        client.say("ping", request_id="after")
        assert client.next()["request_id"] == "after"


def test_answers_come_in_the_order_of_the_commands(shared: Service) -> None:
    with talk(shared) as client:
        for number in range(50):
            client.say("publish", topic="order", records=[{"data": number}], request_id=number)
        acks = [client.next() for _ in range(50)]
        assert [(ack["request_id"], ack["last_seq"]) for ack in acks] == [(n, n + 1) for n in range(50)]


def test_data_is_delivered_as_it_was_written(shared: Service) -> None:
    with talk(shared) as client:
        client.connection.send(
            '{"op":"publish","topic":"text","records":[{"data":{\n"a":\t1.0,"é":"\\u00e9\U0001f600"}}]}'
        )
        assert client.next()["op"] == "ack"
        client.ask("subscribe", topic="text")
        text = client.connection.recv(timeout=PATIENCE_S)
        assert '1.0,"é":"\\u00e9\U0001f600"' in str(text).replace(", ", ",").replace(": ", ":")


# The transport


def test_binary_messages_are_refused(shared: Service) -> None:
    with talk(shared) as client:
        client.connection.send(b"{}")
        assert closed(client.connection) == 1003


def test_text_that_is_not_utf_8_is_refused(shared: Service) -> None:
    with talk(shared) as client:
        client.connection.send(b"\xff\xfe", text=True)
        assert closed(client.connection) == 1007


def test_a_message_may_come_in_fragments(shared: Service) -> None:
    with talk(shared) as client:
        client.connection.send(['{"op": "pi', 'ng", "request_id":', ' "é"}'])
        assert client.next() == {"op": "pong", "request_id": "é"}


def test_a_message_larger_than_a_body_may_be_is_refused(new_service: Callable[..., Service]) -> None:
    with (
        new_service(TOPICS_MAX_BODY_BYTES="20000", TOPICS_MAX_RECORD_BYTES="10000") as service,
        talk(service) as client,
    ):
        client.say("publish", topic="large", records=[{"data": "x" * 9000}])
        assert client.next()["op"] == "ack"
        client.say("publish", topic="large", records=[{"data": "x" * 30000}])
        assert closed(client.connection) == 1009


def test_what_is_no_upgrade_is_an_ordinary_error(shared: Service) -> None:
    plain = httpx.get(f"{shared.url}/v0/ws")
    assert plain.status_code == 400
    assert plain.json()["error"]["code"] == "invalid_request"
    old = httpx.get(
        f"{shared.url}/v0/ws",
        headers={
            "Connection": "Upgrade",
            "Upgrade": "websocket",
            "Sec-WebSocket-Version": "7",
            "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
        },
    )
    assert old.status_code in (400, 426)


def test_a_stop_closes_sockets_and_says_so(new_service: Callable[..., Service]) -> None:
    with new_service() as service, talk(service) as client:
        client.ask("ping")
        assert service.stop() == 0
        assert closed(client.connection) == 1012


def test_a_client_that_does_not_answer_pings_is_left(new_service: Callable[..., Service]) -> None:
    with (
        new_service(TOPICS_WEBSOCKET_PING_MS="300") as service,
        talk(service) as lively,
        sockets.create_connection(("127.0.0.1", service.port), 10) as dead,
    ):
        dead.sendall(
            b"GET /v0/ws HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
            b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
        )
        received = b""
        while data := dead.recv(4096):
            received += data
        assert received.startswith(b"HTTP/1.1 101 ")
        assert b"\r\n\r\n\x89" in received, "it was asked by a ping"
        assert lively.ask("ping")["op"] == "pong", "one that answers pings stays"


def test_a_client_that_does_not_read_misses_nothing_and_delays_nobody(shared: Service) -> None:
    text, rounds = "x" * 20_000, 60
    write(shared, "slow", 0)
    with talk(shared, max_queue=1) as slow, talk(shared, max_queue=1) as fast:
        for client in (slow, fast):
            client.ask("subscribe", topic="slow")
        for number in range(rounds):
            write(shared, "slow", *[f"{number}{text}"] * 5)
        last = 1 + 5 * rounds
        for client in (fast, slow):  # the other one has not read a byte when the first has everything
            client.upto("record", lambda frame: frame["to_seq"] == last)
            assert client.seqs("slow") == list(range(1, last + 1))


def test_a_subscription_outlives_its_shard(service: Service) -> None:
    write(service, "a", 1, 2)
    with talk(service) as client:
        client.ask("subscribe", topic="a")
        client.upto("caught_up")
        for name in ("shard-00", "shard-01"):
            service.kill_child(name)

        def written() -> bool:
            body = {"records": [{"data": 3}], "idempotency_key": "k"}
            return bool(service.request("POST", "/v0/topics/a", body)[0] == 200)

        until(written, "a write after the death")
        client.upto("record", lambda frame: frame["to_seq"] == 3)
        assert client.seqs("a") == [1, 2, 3]


# Keys

FULL, READER, WRITER, TENANT, ADMIN = "full", "reader", "writer", "tenant", "writing-admin"
KEYS = f"{FULL},{READER}:read,{WRITER}:write,{TENANT}:read+write:t42:,{ADMIN}:write+admin"


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    directory: Path = tmp_path_factory.mktemp("keyed")
    with Service(directory, TOPICS_API_KEYS=KEYS, TOPICS_MAX_SSE_CONNECTIONS_PER_KEY="2") as running:
        with talk(running, FULL) as client:
            for topic in ("t42:a", "plain"):
                assert client.ask("publish", topic=topic, records=[{"data": 1}])["op"] == "ack"
        yield running


def test_the_key_is_asked_for_with_the_upgrade_or_first_of_all(keyed: Service) -> None:
    with pytest.raises(InvalidStatus) as caught, talk(keyed, "unknown"):
        pass
    assert caught.value.response.status_code == 401
    assert json.loads(caught.value.response.body or b"")["error"]["code"] == "unauthorized"
    with pytest.raises(InvalidStatus), connect(f"ws://127.0.0.1:{keyed.port}/v0/ws?token={FULL}", proxy=None):
        pass
    for first in ({"op": "subscribe", "topic": "a"}, {"op": "auth", "token": "unknown"}):
        with talk(keyed) as client:
            client.say(**first)
            error = client.next()
            assert (error["op"], error["code"]) == ("error", "unauthorized"), first
            assert closed(client.connection) == 1008
    with talk(keyed) as client:
        client.say("auth", token=FULL)
        assert client.next() == {"op": "authenticated"}
        assert client.ask("publish", topic="a", records=[{"data": 1}])["last_seq"] == 1


def test_each_command_needs_its_own_scope(keyed: Service) -> None:
    record = [{"data": 1}]
    for key, allowed in ((READER, {"subscribe"}), (WRITER, {"publish"}), (ADMIN, {"publish", "config"})):
        with talk(keyed, key) as client:
            answers = {
                "subscribe": client.ask("subscribe", topic="plain"),
                "publish": client.ask("publish", topic="plain", records=record),
                "config": client.ask("publish", topic="plain", records=record, config={"cap_records": 1000}),
            }
            assert {name for name, answer in answers.items() if answer["op"] != "error"} == allowed, key
            assert {answer["code"] for answer in answers.values() if answer["op"] == "error"} == {"forbidden"}
            assert client.ask("ping")["op"] == "pong"


def test_names_are_held_against_the_prefixes(keyed: Service) -> None:
    with talk(keyed, TENANT) as client:
        assert client.ask("subscribe", topic="t42:a")["op"] == "subscribed"
        assert client.ask("publish", topic="t42:b", records=[{"data": 1}])["op"] == "ack"
        for answer in (
            client.ask("subscribe", topic="plain"),
            client.ask("subscribe", topics={"t42:a": {}, "plain": {}}),
            client.ask("publish", topic="plain", records=[{"data": 1}]),
        ):
            assert (answer["op"], answer["code"]) == ("error", "forbidden")


def test_sockets_and_streams_share_the_places_of_a_key(keyed: Service) -> None:
    headers = {"Authorization": f"Bearer {READER}"}
    with httpx.Client(base_url=keyed.url, headers=headers) as http:
        wid = http.post("/v0/watch", json={"topics": {"plain": {}}}).json()["wid"]
        with talk(keyed, READER), http.stream("GET", f"/v0/watch/{wid}") as stream:
            assert stream.status_code == 200
            with pytest.raises(InvalidStatus) as caught, talk(keyed, READER):
                pass
            assert caught.value.response.status_code == 429
            detail = json.loads(caught.value.response.body or b"")["error"]["detail"]
            assert detail == {"limit": "max_sse_connections_per_key", "max": 2}

    def free() -> bool:
        try:
            with talk(keyed, READER), talk(keyed, READER):
                return True
        except InvalidStatus:
            return False

    until(free, "both places to be free again")
