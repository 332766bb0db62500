"""Claims about two machines that hear each other: a client of the one that holds no shard is served by the other's.
There is one shard, so that one of them has it.

Every operation, long polls, streams and the other protocols take that way. A fault of the link or of the holder is one
of the requests that were under way, and of no data.
"""

from __future__ import annotations

import http.client
import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.test_roles import machine, records, stands_by
from tests.support.bucket import S3Server
from tests.support.events import Watch
from tests.support.programs import free_port
from tests.support.protocols import RogWire, WalrusWire, ports
from tests.support.service import Service, until
from topics_client import Client

PATIENCE_S = 60
HEARS = {"TOPICS_CLUSTER_LISTEN": "127.0.0.1:0", "TOPICS_ADVERTISE": ""}
ONE_SHARD = HEARS | {"TOPICS_SHARDS": "1"}
FSYNC = {"durability": "fsync"}


def asks(running: Service, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
    """An answer; status 0 if there is none."""
    connection = http.client.HTTPConnection(running.host, running.port, timeout=30)
    try:
        raw = None if body is None else json.dumps(body)
        connection.request(method, path, raw, {"Content-Type": "application/json", **headers})
        answer = connection.getresponse()
        found = answer.read()
        return answer.status, json.loads(found) if found else None
    except (OSError, http.client.HTTPException):
        return 0, None
    finally:
        connection.close()


def done(running: Service, method: str, path: str, body: Any = None, **headers: str) -> Any:
    status, answer = asks(running, method, path, body, **headers)
    assert status in (200, 201), answer
    return answer


def publish(running: Service, topic: str, *data: Any) -> Any:
    return done(running, "POST", f"/v0/topics/{topic}", {"records": [{"data": each} for each in data]})


def phases(running: Service) -> list[str]:
    return [running.status().get("children", {}).get(f"shard-{n:02d}", {}).get("phase", "") for n in range(1)]


def forwards(running: Service) -> bool:
    """Whether a machine serves without holding a shard."""
    running.port = int(running.status().get("url", ":0").rpartition(":")[2])
    return phases(running) == ["standby"] and running.is_ready()


def started(one: Service, two: Service) -> None:
    one.start(wait=False).wait_ready(PATIENCE_S)
    two.start(wait=False)
    until(lambda: forwards(two), "a machine that forwards", PATIENCE_S)


@pytest.fixture
def pair(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[tuple[Service, Service]]:
    """The holder, and a machine that forwards to it. The parameter is more settings, or `s3`."""
    more = getattr(request, "param", {})
    if more == "s3":
        with S3Server() as store:
            yield from machines(tmp_path, {"TOPICS_BUCKET": store.url, **store.environment})
    else:
        yield from machines(tmp_path, more)


def machines(tmp_path: Path, more: dict[str, str]) -> Iterator[tuple[Service, Service]]:
    one, two = (machine(tmp_path, name, **(ONE_SHARD | more)) for name in ("one", "two"))
    try:
        started(one, two)
        yield one, two
    finally:
        one.close()
        two.close()


def test_a_client_that_is_direct_needs_the_other_machine_no_more(tmp_path: Path) -> None:
    made = []
    for name in ("one", "two"):
        made.append(machine(tmp_path, name, **ONE_SHARD))
        made[-1].port = free_port()
        made[-1].environment["TOPICS_ADVERTISE"] = made[-1].url
    one, two = made
    try:
        started(one, two)
        with Client(two.url, direct=True, patience_s=PATIENCE_S) as client:
            client.publish("t", 1)
            two.kill_group()
            client.publish("t", 2)
            assert [record.data for record in client.read("t")] == records(one, "t") == [1, 2]
    finally:
        one.close()
        two.close()


@pytest.mark.parametrize("pair", [{}, "s3"], ids=["directory", "s3"], indirect=True)
def test_what_a_client_asks_of_one_machine_is_done_by_the_other(pair: tuple[Service, Service]) -> None:
    one, two = pair
    for number in range(6):
        done(two, "PUT", f"/v0/topics/t{number}", FSYNC)
        assert publish(two, f"t{number}", number, "x" * 100_000)["seqs"] == [1, 2]
        assert records(one, f"t{number}") == records(two, f"t{number}") == [number, "x" * 100_000]
    listed = done(two, "GET", "/v0/topics?limit=100")
    assert [each["topic"] for each in listed["topics"]] == [f"t{number}" for number in range(6)]
    done(two, "PUT", "/v0/routers/r", {"source": "t0", "dest": "t1", "guarantee": "exactly_once"})
    publish(one, "t0", "routed")
    until(lambda: records(two, "t1")[-1] == "routed", "the copy")
    done(two, "PUT", "/v0/topics/t2/cursors/c", {"seq": 1})
    assert done(one, "GET", "/v0/topics/t2/cursors/c")["seq"] == 1
    done(two, "DELETE", "/v0/topics/t5")
    assert asks(one, "GET", "/v0/topics/t5")[0] == 404
    status, answer = asks(two, "POST", "/v0/topics/none/diff", {"from_seq": 0})
    assert (status, answer["error"]["code"]) == (404, "topic_not_found")
    assert two.is_ready()


def test_jobs_long_polls_and_streams_take_the_same_way(pair: tuple[Service, Service]) -> None:
    one, two = pair
    done(two, "PUT", "/v0/topics/jobs", {"type": "queue", **FSYNC})
    done(two, "PUT", "/v0/topics/events", FSYNC)
    got: list[Any] = []
    waits = [
        ("/v0/topics/jobs/claim", {"node": "w", "max": 1, "wait_ms": 20_000}),
        ("/v0/topics/events/diff", {"from_seq": 0, "wait_ms": 20_000}),
    ]
    threads = [
        threading.Thread(target=lambda path=path, body=body: got.append(done(two, "POST", path, body)))
        for path, body in waits
    ]
    for each in threads:
        each.start()
    wid = done(two, "POST", "/v0/watch", {"topics": {"events": {"from_seq": 0}}})["wid"]
    with Watch(two, wid) as stream:
        publish(one, "events", "first")
        publish(one, "jobs", "work")
        stream.wait_seq("events", 1)
        for each in threads:
            each.join(30)
        answers = {key: value for answer in got for key, value in answer.items()}
        assert [record["data"] for record in answers["records"]] == ["first"]
        (job,) = answers["claimed"]
        assert done(one, "POST", "/v0/topics/jobs/ack", {"node": "w", "seqs": [job["$seq"]]})["acked"] == 1
        publish(two, "events", *range(50))
        stream.wait_seq("events", 51)
        assert stream.seqs("events") == list(range(1, 52))


@pytest.mark.parametrize(
    "pair",
    [{"TOPICS_WALRUS_LISTEN": "127.0.0.1:0", "TOPICS_ROG_LISTEN": "127.0.0.1:0"}],
    indirect=True,
)
def test_walrus_and_rog_take_the_same_way(pair: tuple[Service, Service]) -> None:
    one, two = pair
    for each in pair:
        assert ports(each, "walrus")
        assert ports(each, "rog")
    wire, other = WalrusWire(ports(two, "walrus")[0]), WalrusWire(ports(one, "walrus")[0])
    assert wire.ask("REGISTER logs").startswith("OK")
    assert wire.ask("PUT logs hello").startswith("OK")
    assert "hello" in other.ask("GET logs")
    rog = RogWire(ports(two, "rog")[0])
    rog.create("log", 1)
    rog.publish("log", 0, b"data")
    assert rog.fetch("log", 0, "group") == b"data"
    for open_ in (wire, other, rog):
        open_.close()


def test_keys_are_checked_where_the_client_comes_in(tmp_path: Path) -> None:
    one = machine(tmp_path, "one", **ONE_SHARD, TOPICS_API_KEYS="first")
    two = machine(tmp_path, "two", **ONE_SHARD, TOPICS_API_KEYS="second")
    try:
        started(one, two)
        done(two, "PUT", "/v0/topics/t", FSYNC, Authorization="Bearer second")
        assert asks(two, "GET", "/v0/topics/t", Authorization="Bearer first")[0] == 401
        assert asks(one, "GET", "/v0/topics/t", Authorization="Bearer second")[0] == 401
        done(one, "GET", "/v0/topics/t", Authorization="Bearer first")
    finally:
        one.close()
        two.close()


def test_when_the_holder_is_killed_the_other_takes_over_and_then_hears_it_as_well(
    pair: tuple[Service, Service],
) -> None:
    one, two = pair
    for number in range(3):
        done(two, "PUT", f"/v0/topics/t{number}", FSYNC)
    acked: dict[str, list[int]] = {f"t{number}": [] for number in range(3)}
    stop = threading.Event()

    def write(topic: str) -> None:
        number = 0
        while not stop.is_set():
            number += 1
            status, answer = asks(two, "POST", f"/v0/topics/{topic}", {"records": [{"data": number}]})
            if status in (200, 201):
                acked[topic].append(number)
            else:
                assert status == 503, (status, answer)

    threads = [threading.Thread(target=write, args=(topic,)) for topic in acked]
    for each in threads:
        each.start()
    until(lambda: all(len(numbers) > 20 for numbers in acked.values()), "writes", PATIENCE_S)
    one.kill_group()
    until(lambda: phases(two) == ["ready"], "the takeover", PATIENCE_S)
    before = {topic: len(numbers) for topic, numbers in acked.items()}
    until(lambda: all(len(acked[topic]) > before[topic] + 20 for topic in acked), "writes", PATIENCE_S)
    one.start(wait=False)
    until(lambda: forwards(one), "the first machine to forward", PATIENCE_S)
    stop.set()
    for each in threads:
        each.join()
    for topic, numbers in acked.items():
        found = records(one, topic)
        assert found == records(two, topic)
        assert found == sorted(set(found)), "every write once, in order"
        assert [number for number in found if number in set(numbers)] == numbers


def test_when_a_shard_of_the_holder_is_killed_the_link_is_made_again(pair: tuple[Service, Service]) -> None:
    one, two = pair
    done(two, "PUT", "/v0/topics/t", FSYNC)
    publish(two, "t", 1)
    os.kill(one.status()["children"]["shard-00"]["pid"], signal.SIGKILL)
    until(lambda: phases(one) == ["ready"] and one.is_ready(), "the holder again", PATIENCE_S)
    until(lambda: asks(two, "POST", "/v0/topics/t", {"records": [{"data": 2}]})[0] == 200, "a write", PATIENCE_S)
    assert records(two, "t")[:2] == [1, 2]
    until(lambda: forwards(two), "the other one to forward", PATIENCE_S)


def test_while_the_process_that_follows_the_shard_is_away_requests_are_passed_on(
    pair: tuple[Service, Service],
) -> None:
    _, two = pair
    done(two, "PUT", "/v0/topics/t", FSYNC)
    pid = two.status()["children"]["shard-00"]["pid"]
    os.kill(pid, signal.SIGKILL)
    for number in range(20):
        publish(two, "t", number)
    until(lambda: forwards(two), "a machine that forwards", PATIENCE_S)
    assert two.status()["children"]["shard-00"]["pid"] != pid
    assert records(two, "t") == list(range(20))


def test_a_holder_that_is_stopped_fails_what_was_sent_in_seconds(pair: tuple[Service, Service]) -> None:
    one, two = pair
    done(two, "PUT", "/v0/topics/t", FSYNC)
    os.killpg(one.process.pid, signal.SIGSTOP)  # type: ignore[union-attr]
    for pid in one.pids():
        os.kill(pid, signal.SIGSTOP)
    try:
        began = time.monotonic()
        status, answer = asks(two, "POST", "/v0/topics/t", {"records": [{"data": 1}]})
        assert (status, answer["error"]["detail"]["outcome"]) == (503, "unknown")
        assert time.monotonic() - began < 10
        until(lambda: phases(two) == ["ready"], "the takeover", PATIENCE_S)
        publish(two, "t", 2)
    finally:
        for pid in one.pids():
            os.kill(pid, signal.SIGCONT)
    until(lambda: forwards(one), "the first machine to forward", PATIENCE_S)
    assert records(one, "t")[-1] == 2
    assert records(one, "t") == records(two, "t")


def test_a_machine_whose_member_is_deleted_is_heard_no_more_until_it_writes_it_again(
    pair: tuple[Service, Service], tmp_path: Path
) -> None:
    _, two = pair
    done(two, "PUT", "/v0/topics/t", FSYNC)
    name = json.loads((two.data_dir / "machine.json").read_text())["machine"]
    member = tmp_path / "bucket" / "members" / name
    roster = two.status()["children"]["roster"]["pid"]
    os.kill(roster, signal.SIGSTOP)
    try:
        member.unlink()
        until(lambda: asks(two, "GET", "/v0/topics/t")[0] == 503, "a refusal", PATIENCE_S)
        assert stands_by(two)
    finally:
        os.kill(roster, signal.SIGCONT)
    until(lambda: asks(two, "GET", "/v0/topics/t")[0] == 200, "the machine to be heard again", PATIENCE_S)


def test_a_machine_that_does_not_listen_stands_by(tmp_path: Path) -> None:
    one, two = machine(tmp_path, "one", **ONE_SHARD), machine(tmp_path, "two", TOPICS_SHARDS="1")
    try:
        one.start(wait=False).wait_ready(PATIENCE_S)
        two.start(wait=False)
        until(lambda: stands_by(two), "a standby", PATIENCE_S)
        status, answer = asks(two, "PUT", "/v0/topics/t", FSYNC)
        assert (status, answer["error"]["detail"]["outcome"]) == (503, "not_done")
        assert not (two.data_dir / "machine.json").exists()
        assert "roster" not in two.status()["children"]
    finally:
        one.close()
        two.close()


def test_a_stop_of_the_holder_hands_over_and_withdraws_its_member(
    pair: tuple[Service, Service], tmp_path: Path
) -> None:
    one, two = pair
    done(two, "PUT", "/v0/topics/t", FSYNC)
    publish(two, "t", 1)
    assert len(list((tmp_path / "bucket" / "members").iterdir())) == 2
    one.stop(timeout_s=60)
    until(lambda: phases(two) == ["ready"], "the takeover", PATIENCE_S)
    assert records(two, "t") == [1]
    assert len(list((tmp_path / "bucket" / "members").iterdir())) == 1
    for text in (one.log_text(), two.log_text()):
        assert "Traceback" not in text
