"""Claims about watches of a prefix: topics come and go, processes die, and nothing is missed."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from websockets.sync.client import ClientConnection, connect

from proto.model.names import shard_of
from tests.e2e.test_live_robust import patient_write
from tests.support.events import Watch, watch, write
from tests.support.service import Service, until
from tests.support.sse import encoded

MOST = 4


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service with keys whose streams watch few topics."""
    keys = "all,tenant:rw+d+a:a:|shared."
    with Service(tmp_path_factory.mktemp("small"), TOPICS_MAX_WATCH_TOPICS=str(MOST), TOPICS_API_KEYS=keys) as running:
        yield running


def ask(service: Service, method: str, path: str, body: Any = None, key: str = "all") -> tuple[int, Any]:
    connection = service.connect()
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    try:
        connection.request(method, path, None if body is None else json.dumps(body), headers)
        response = connection.getresponse()
        return response.status, json.loads(response.read() or b"null")
    finally:
        connection.close()


def put(service: Service, topic: str, *data: Any, key: str = "all") -> None:
    status, answer = ask(service, "POST", f"/v0/topics/{topic}", {"records": [{"data": each} for each in data]}, key)
    assert status in (200, 201), answer


def opened(service: Service, key: str = "all", **fields: Any) -> Watch:
    status, made = ask(service, "POST", "/v0/watch", fields, key)
    assert status == 200, made
    return Watch(service, made["wid"], Authorization=f"Bearer {key}")


def test_topics_that_are_there_and_later_ones_on_all_shards(shared: Service) -> None:
    write(shared, "wild:old", 1, 2)
    write(shared, "tame:old", 1)
    wid = watch(shared, prefix="wild:", tail=True)
    later = [f"wild:{n}" for n in range(8)]
    assert {shard_of(name, 2) for name in later} == {0, 1}
    with Watch(shared, wid) as stream:
        stream.wait_for("caught-up", "wild:old")
        for name in later:
            write(shared, name, "first", "second")
        write(shared, "wild:old", 3)
        write(shared, "tame:new", 1)
        for name in later:
            stream.wait_seq(name, 2)
            assert stream.seqs(name) == [1, 2], "a later topic begins with its first record, whatever `tail` says"
        stream.wait_seq("wild:old", 3)
        assert stream.seqs("wild:old") == [3]
        assert not stream.kinds("tame:old") + stream.kinds("tame:new")


def test_a_topic_is_deleted_and_made_again(shared: Service) -> None:
    with Watch(shared, watch(shared, prefix="phoenix:")) as stream:
        for round_ in range(3):
            write(shared, "phoenix:a", *range(round_ + 1))
            until(lambda: len(stream.seqs("phoenix:a")) == sum(range(1, round_ + 2)), "the records")  # noqa: B023
            assert shared.request("DELETE", "/v0/topics/phoenix:a")[0] == 200
            stream.wait_for("topic-deleted", "phoenix:a", round_ + 1)
        write(shared, "phoenix:b", 1)
        stream.wait_seq("phoenix:b", 1)
        assert stream.seqs("phoenix:a") == [1, 1, 2, 1, 2, 3]
        assert "tombstone" not in stream.kinds()


def test_an_id_from_before_a_topic_came_takes_it_back_to_its_beginning(shared: Service) -> None:
    write(shared, "back:a", 1)
    wid = watch(shared, prefix="back:")
    with Watch(shared, wid) as stream:
        stream.wait_seq("back:a", 1)
        before = stream.last_id
        write(shared, "back:b", 1, 2, 3)
        stream.wait_seq("back:b", 3)
        after = stream.last_id
    with Watch(shared, wid, after) as stream:
        stream.wait_for("caught-up", "back:b")
        assert not stream.seqs("back:b")
    with Watch(shared, wid, before) as stream:
        stream.wait_for("caught-up", "back:b")
        assert stream.seqs("back:b") == [1, 2, 3]
        assert not stream.seqs("back:a")
    made = shared.request("POST", "/v0/watch", {"prefix": "back:", "tail": True, "cursor": before})[1]
    assert {name: each["from_seq"] for name, each in made["topics"].items()} == {"back:a": 1, "back:b": 0}


def test_an_id_with_a_topic_that_nothing_else_knows_ends_the_session(shared: Service) -> None:
    write(shared, "forgot:a", 1)
    wid = watch(shared, prefix="forgot:")
    with Watch(shared, wid, encoded({"forgot:a": 1, "forgot:gone": 7})) as stream:
        assert stream.wait_for("error")["code"] == 410
        assert stream.ended.wait(10)


def test_ids_of_many_topics_resume_each_of_them(shared: Service) -> None:
    names = [f"many:{'x' * 60}:{n}" for n in range(80)]
    for name in names:
        write(shared, name, 1)
    wid = watch(shared, prefix="many:")
    with Watch(shared, wid) as stream:
        for name in names:
            stream.wait_for("caught-up", name)
        before = stream.last_id
        assert before.startswith("p.")
        assert len(before) < 4096
        write(shared, names[3], 2)
        write(shared, "many:new", 1)
        stream.wait_seq(names[3], 2)
        stream.wait_seq("many:new", 1)
    with Watch(shared, wid, before) as stream:
        stream.wait_for("caught-up", names[3])
        stream.wait_for("caught-up", "many:new")
        assert stream.seqs(names[3]) == [2]
        assert stream.seqs("many:new") == [1]
        assert not stream.seqs(names[4])


def test_topics_that_came_while_the_client_or_the_gateway_was_away(service: Service) -> None:
    write(service, "away:a", 1)
    wid = watch(service, prefix="away:")
    with Watch(service, wid) as stream:
        stream.wait_for("caught-up", "away:a")
    write(service, "away:b", 1, 2)
    with Watch(service, wid, stream.last_id) as stream:
        stream.wait_seq("away:b", 2)
        assert stream.seqs("away:b") == [1, 2]
        write(service, "away:c", 1)
        stream.wait_seq("away:c", 1)
        service.kill_child("gateway")
        assert stream.ended.wait(10)
    patient_write(service, "away:d", 1)
    with Watch(service, wid, stream.last_id) as again:
        again.wait_seq("away:d", 1)
        write(service, "away:e", 1)
        again.wait_seq("away:e", 1)
        assert "tombstone" not in again.kinds()
        assert again.seqs("away:c") in ([], [1]), "its first frame may not have been saved"


def test_topics_made_by_many_writers_while_a_shard_is_killed(service: Service) -> None:
    wid = watch(service, prefix="burst:")
    names = [[f"burst:{writer}:{n}" for n in range(15)] for writer in range(4)]

    def work(mine: list[str]) -> None:
        for name in mine:
            patient_write(service, name, 1)
            patient_write(service, name, 2)

    with Watch(service, wid) as stream:
        writers = [threading.Thread(target=work, args=(mine,)) for mine in names]
        for writer in writers:
            writer.start()
        until(lambda: len(stream.of("record")) > 10, "some records")
        service.kill_child("shard-00")
        for writer in writers:
            writer.join()
        for name in [name for mine in names for name in mine]:
            stream.wait_seq(name, 2)
            assert stream.seqs(name) == [1, 2]
        assert "tombstone" not in stream.kinds()
        assert not stream.ended.is_set()


def test_more_topics_than_can_be_watched_are_refused_or_told(small: Service) -> None:
    for n in range(MOST):
        put(small, f"full:{n}", 1)
    with opened(small, prefix="full:") as stream:
        for n in range(MOST):
            stream.wait_seq(f"full:{n}", 1)
        put(small, "full:late", 1, 2)
        told = stream.wait_for("error")
        assert told["code"] == 429
        assert told["topics"] == ["full:late"]
        assert f"at once, {MOST}" in told["error"]
        status, answer = ask(small, "POST", "/v0/watch", {"prefix": "full:"})
        assert (status, answer["error"]["code"], answer["error"]["detail"]["max"]) == (400, "invalid_request", MOST)
        assert ask(small, "DELETE", "/v0/topics/full:2")[0] == 200
        stream.wait_seq("full:late", 2)
        assert stream.seqs("full:late") == [1, 2], "there is room for it now"
        assert stream.kinds().count("error") == 1


def test_a_key_sees_the_topics_of_its_own_prefixes(small: Service) -> None:
    for prefix, watched in (("", {"a:1", "shared.1"}), ("a", {"a:1"}), ("shared.", {"shared.1"})):
        with opened(small, "tenant", prefix=prefix) as stream:
            for name in ("a:1", "ab:1", "b:1", "shared.1"):
                put(small, name, 1)
            for name in watched:
                stream.wait_for("caught-up", name)
            put(small, "a:end" if "a:1" in watched else "shared.end", 1)
            stream.wait_for("record", "a:end" if "a:1" in watched else "shared.end")
            assert {event.data["topic"] for event in stream.events} <= watched | {"a:end", "shared.end"}
        for name in ("a:1", "ab:1", "b:1", "shared.1", "a:end", "shared.end"):
            ask(small, "DELETE", f"/v0/topics/{name}")
    status, answer = ask(small, "POST", "/v0/watch", {"prefix": "b:"}, "tenant")
    assert (status, answer["error"]["code"]) == (403, "forbidden")


@pytest.mark.parametrize("body", [{"prefix": "a b"}, {"prefix": ":"}, {"prefix": 1}, {"prefix": None}, {"tail": True}])
def test_what_is_no_prefix(shared: Service, body: dict[str, Any]) -> None:
    status, answer = shared.request("POST", "/v0/watch", body)
    assert (status, answer["error"]["code"]) == (400, "invalid_request")


def test_a_prefix_with_named_topics_beside_it(shared: Service) -> None:
    write(shared, "mix:a", 1, 2)
    write(shared, "other", 1, 2)
    body = {"prefix": "mix:", "topics": {"other": {"from_seq": 1}, "mix:a": {"from_seq": 1}}}
    with Watch(shared, watch(shared, **body)) as stream:
        write(shared, "mix:b", 1)
        for name, seqs in (("other", [2]), ("mix:a", [2]), ("mix:b", [1])):
            stream.wait_seq(name, seqs[-1])
            assert stream.seqs(name) == seqs
    assert shared.request("POST", "/v0/watch", {"prefix": "mix:", "topics": {"missing": {}}})[0] == 404


def receive(socket: ClientConnection, wanted: Callable[[Any], bool]) -> list[Any]:
    """Read messages up to a wanted one."""
    seen: list[Any] = []
    while not seen or not wanted(seen[-1]):
        seen.append(json.loads(socket.recv(timeout=10)))
    return seen


def test_a_websocket_subscribes_to_a_prefix(shared: Service) -> None:
    write(shared, "ws:a", 1)
    with connect(f"ws://127.0.0.1:{shared.port}/v0/ws") as socket:

        def say(**command: Any) -> Any:
            socket.send(json.dumps(command))
            return receive(socket, lambda told: told["op"] not in ("record", "caught_up"))[-1]

        told = say(op="subscribe", prefix="ws:", tail=True)
        assert told["topics"] == {"ws:a": {"from_seq": 1, "head_seq": 1, "earliest_seq": 1}}
        write(shared, "ws:b", 1)
        record = receive(socket, lambda told: told["op"] == "record")[-1]
        assert (record["topic"], record["to_seq"]) == ("ws:b", 1)
        assert say(op="unsubscribe", topic="ws:b")["code"] == "invalid_request"
        assert say(op="subscribe", prefix="ws:b")["topics"] == {}, "it is subscribed already"
        assert say(op="unsubscribe", prefix="ws:")["topics"] == ["ws:a"], "another prefix covers ws:b"
        write(shared, "ws:c", 1)
        write(shared, "ws:b2", 1)
        seen = receive(socket, lambda told: told["op"] == "record")
        assert [each["topic"] for each in seen if each["op"] == "record"] == ["ws:b2"]
        assert sorted(say(op="unsubscribe", prefix="ws:b")["topics"]) == ["ws:b", "ws:b2"]
        assert say(op="subscribe")["code"] == "invalid_request"
