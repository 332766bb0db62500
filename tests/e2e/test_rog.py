"""The Rog document, sentence by sentence, against a real service."""

from __future__ import annotations

import base64
import json
import os
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.protocols import RogWire, opened, ports
from tests.support.service import Service, until

NO_DATA = "No data left in the log to be read"
LARGEST = (1048576 - 2 - len('{"encoding":"base64"}')) // 4 * 3


@pytest.fixture(scope="module")
def rog(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    directory: Path = tmp_path_factory.mktemp("service")
    with Service(directory, TOPICS_ROG_LISTEN="127.0.0.1:0") as running:
        yield running


@pytest.fixture(params=["one byte", "u64"])
def client(request: pytest.FixtureRequest, rog: Service) -> Iterator[RogWire]:
    """A client with group sizes as real clients send them, and one with sizes as in the document."""
    with opened(RogWire, ports(rog, "rog")[0], wide=request.param == "u64") as connection:
        connection.tag = "w" if request.param == "u64" else "n"
        yield connection


@pytest.fixture
def log(client: RogWire, request: pytest.FixtureRequest) -> str:
    """A log of three partitions for each test."""
    name = f"{request.node.originalname}-{client.wide}"
    assert client.create(name, 3) == ""
    return name


def test_messages_are_fetched_until_acked_and_in_order(client: RogWire, log: str) -> None:
    assert client.fetch(log, 0, "g") == NO_DATA
    for message in (b"one", b"two"):
        assert client.publish(log, 0, message) == ""
    assert [client.fetch(log, 0, "g") for _ in range(3)] == [b"one"] * 3, "a fetch moved the group"
    assert client.ack(log, 0, "g") == ""
    assert client.fetch(log, 0, "g") == b"two"
    assert client.ack(log, 0, "g") == ""
    assert client.fetch(log, 0, "g") == NO_DATA


def test_an_ack_at_the_head_never_skips_a_later_message(client: RogWire, log: str) -> None:
    client.publish(log, 0, b"one")
    for _ in range(3):
        assert client.ack(log, 0, "g") == ""
    client.publish(log, 0, b"two")
    assert client.fetch(log, 0, "g") == b"two"


def test_groups_are_independent(client: RogWire, log: str) -> None:
    client.publish(log, 1, b"one")
    client.publish(log, 1, b"two")
    client.fetch(log, 1, "a")
    client.ack(log, 1, "a")
    assert client.fetch(log, 1, "a") == b"two"
    assert client.fetch(log, 1, "b") == b"one"
    long = "ü" * 127 + "x"
    assert client.fetch(log, 1, long) == b"one"


def test_partitions_are_independent(client: RogWire, log: str) -> None:
    for partition in range(3):
        assert client.publish(log, partition, b"of %d" % partition) == ""
    assert [client.fetch(log, partition, "g") for partition in range(3)] == [b"of 0", b"of 1", b"of 2"]
    client.ack(log, 1, "g")
    assert client.fetch(log, 0, "g") == b"of 0"
    assert client.fetch(log, 1, "g") == NO_DATA


def test_the_error_texts_that_clients_match_on(client: RogWire, log: str) -> None:
    assert client.create(log, 3) == f"Log {log} already exists"
    assert client.create("empty", 0) == "Number of partitions must be at least 1"
    assert client.fetch(log, 0, "g") == NO_DATA
    beyond = f"Trying to access partition 3 but log {log} has 3 partitions"
    unknown = "No log registered with name nope"
    for name, partition, text in ((log, 3, beyond), ("nope", 0, unknown)):
        assert client.publish(name, partition, b"x") == text
        assert client.fetch(name, partition, "g") == text
        assert client.ack(name, partition, "g") == text


def test_names_that_no_topic_may_have_are_refused(rog: Service, client: RogWire) -> None:
    for name in ("_x", "a b", "é", "x" * 254):
        assert "is not valid" in client.create(name, 1)
    assert client.publish("a b", 0, b"x") == "No log registered with name a b"
    longest = client.tag + "x" * 252
    assert client.create(longest, 10) == ""
    assert client.publish(longest, 9, b"x") == ""
    assert client.create(client.tag + "y" * 252, 11) != "", "its partition 10 would have a name of 256 characters"


@pytest.mark.parametrize("size", [0, 1, 255, 65_536, 780_000, LARGEST])
def test_binary_messages_of_every_size(rog: Service, client: RogWire, size: int) -> None:
    log = f"binary-{client.tag}-{size}"
    assert client.create(log, 1) == ""
    data = os.urandom(size)
    assert client.publish(log, 0, data) == ""
    assert client.fetch(log, 0, "g") == data


def test_a_message_that_is_too_large_is_refused_and_the_connection_goes_on(client: RogWire, log: str) -> None:
    assert "at most" in client.publish(log, 0, bytes(LARGEST + 1))
    assert client.publish(log, 0, b"fine") == ""
    client.send(client._log(1, 0, log) + struct.pack(">Q", 1 << 60))
    assert "at most" in client._status()
    assert client.ended()


def test_an_unknown_command_is_answered_and_ends_the_connection(client: RogWire) -> None:
    client.send(b"\x07")
    assert client._status() == "Unknown command 7"
    assert client.ended()


def test_bytes_one_at_a_time_and_many_commands_at_once(client: RogWire, log: str) -> None:
    group = client._group("g")
    for byte in client._log(1, 0, log) + struct.pack(">Q", 3) + b"abc":
        client.send(bytes([byte]))
    assert client._status() == ""
    fetch, ack = client._log(2, 0, log) + group, client._log(3, 0, log) + group
    client.send(fetch + ack + fetch)
    assert (client._status() or client._sized()) == b"abc"
    assert client._status() == ""
    assert client._status() == NO_DATA


def test_one_command_for_each_connection(rog: Service, client: RogWire, log: str) -> None:
    port = ports(rog, "rog")[0]

    def once(method: str, *arguments: object) -> object:
        with opened(RogWire, port, wide=client.wide) as single:
            return getattr(single, method)(*arguments)

    assert once("publish", log, 0, b"one") == ""
    assert once("publish", log, 0, b"two") == ""
    assert once("fetch", log, 0, "g") == b"one"
    assert once("ack", log, 0, "g") == ""
    assert once("fetch", log, 0, "g") == b"two"


def test_an_ack_means_what_was_fetched_on_its_connection(rog: Service, client: RogWire, log: str) -> None:
    for message in (b"one", b"two", b"three"):
        client.publish(log, 0, message)
    with opened(RogWire, ports(rog, "rog")[0]) as other:
        assert client.fetch(log, 0, "g") == b"one"
        assert other.fetch(log, 0, "g") == b"one"
        client.ack(log, 0, "g")
        other.ack(log, 0, "g")
        assert client.fetch(log, 0, "g") == b"two", "two acks of one message took two messages"
        rog.request("POST", f"/v0/topics/{log}:0/delete", {"before_seq": 3})
        client.ack(log, 0, "g")
        assert client.fetch(log, 0, "g") == b"three", "the ack took a message that was never fetched"


def test_a_fetch_for_another_group_changes_no_ack(rog: Service, client: RogWire, log: str) -> None:
    for message in (b"one", b"two"):
        client.publish(log, 0, message)
    assert client.fetch(log, 0, "a") == client.fetch(log, 0, "b") == b"one"
    with opened(RogWire, ports(rog, "rog")[0]) as other:
        assert (other.fetch(log, 0, "a"), other.ack(log, 0, "a")) == (b"one", "")
    client.ack(log, 0, "b")
    client.ack(log, 0, "a")
    assert client.fetch(log, 0, "a") == b"two", "the ack took a message that was never fetched"


def test_messages_are_records_and_records_are_messages(rog: Service, client: RogWire, log: str) -> None:
    client.publish(log, 2, b"\0\xff")
    (record,) = rog.request("POST", f"/v0/topics/{log}:2/diff", {"from_seq": 0})[1]["records"]
    assert (record["data"], record["meta"]) == (base64.b64encode(b"\0\xff").decode(), {"encoding": "base64"})
    records = [
        {"data": "text é"},
        {"data": {"a": 1}},
        {"data": base64.b64encode(b"packed").decode(), "meta": {"encoding": "base64", "by": "me"}},
        {"data": "not base64!", "meta": {"encoding": "base64"}},
        {"data": "YQ==", "meta": {"encoding": 5}},
    ]
    assert rog.request("POST", f"/v0/topics/{log}:2", {"records": records})[0] == 200
    got = []
    for _ in range(6):
        got.append(client.fetch(log, 2, "g"))
        client.ack(log, 2, "g")
    assert got == [b"\0\xff", "text é".encode(), b'{"a": 1}', b"packed", b"not base64!", b"YQ=="]
    found = rog.request("GET", f"/v0/topics/{log}:2/cursors/g")[1]
    assert (found["seq"], found["lag"]) == (6, 0)
    assert rog.request("GET", f"/v0/topics/{log}:2")[1]["config"]["durability"] == "fsync"


def test_a_partition_that_was_deleted_is_empty_and_comes_back_with_the_next_publish(
    rog: Service, client: RogWire, log: str
) -> None:
    client.publish(log, 0, b"old")
    rog.request("DELETE", f"/v0/topics/{log}:0")
    assert client.fetch(log, 0, "g") == NO_DATA
    assert client.ack(log, 0, "g") == ""
    assert client.publish(log, 0, b"new") == ""
    assert client.fetch(log, 0, "g") == b"new"
    assert rog.request("GET", f"/v0/topics/{log}:0")[1]["config"]["durability"] == "fsync"


def test_of_many_who_create_a_log_one_does(rog: Service) -> None:
    port = ports(rog, "rog")[0]
    clients = [RogWire(port) for _ in range(8)]
    for each in clients:
        each.send(each._log(0, 4, "race"))
    answers = [each._status() for each in clients]
    for each in clients:
        each.close()
    assert sorted(answers) == ["", *["Log race already exists"] * 7]


def test_the_command_line_client(rog: Service, tmp_path: Path) -> None:
    address = rog.status()["rog"][0]

    def cli(*arguments: str) -> tuple[int, bytes, bytes]:
        command = [sys.executable, "-m", "supervisor.cli", "rog", "--address", address, *arguments]
        done = subprocess.run(command, capture_output=True, timeout=30, check=False)
        return done.returncode, done.stdout, done.stderr

    assert cli("create-log", "--name", "cli", "--partitions", "2") == (0, b"", b"")
    assert cli("create-log", "--name", "cli")[::2] == (1, b"topics: Log cli already exists\n")
    (tmp_path / "message").write_bytes(b"\0\1\2")
    assert cli("publish", "-l", "cli", "-p", "1", "--file", str(tmp_path / "message"))[0] == 0
    assert cli("fetch", "-l", "cli", "-p", "1", "-g", "g") == (0, b"\0\1\2", b"")
    assert cli("ack", "-l", "cli", "-p", "1", "-g", "g")[0] == 0
    assert cli("fetch", "-l", "cli", "-p", "1", "-g", "g")[::2] == (1, f"topics: {NO_DATA}\n".encode())


def test_commands_are_counted(rog: Service) -> None:
    def metrics() -> str:
        connection = rog.connect()
        connection.request("GET", "/v0/metrics")
        text = connection.getresponse().read().decode()
        connection.close()
        return text

    # Figures of other gateways may be a second old.
    until(lambda: 'topics_rog_commands_total{command="create",result="ok"}' in metrics(), "the command to be counted")
    assert "topics_rog_connections" in metrics()


def test_logs_messages_and_groups_outlive_kills_and_restarts(tmp_path: Path) -> None:
    with Service(tmp_path, TOPICS_ROG_LISTEN="127.0.0.1:0") as service:
        (port,) = ports(service, "rog")
        service.environment["TOPICS_ROG_LISTEN"] = f"127.0.0.1:{port}"
        with opened(RogWire, port) as client:
            assert client.create("safe", 2) == ""
            for n in range(30):
                assert client.publish("safe", n % 2, b"%d" % n) == ""
            assert client.fetch("safe", 0, "g") == b"0"
            assert client.ack("safe", 0, "g") == ""
        service.kill_group()
        service.start()
        with opened(RogWire, port) as client:
            assert client.create("safe", 2) == "Log safe already exists"
            assert client.fetch("safe", 0, "g") == b"2", "an ack that was answered was lost"
            assert client.fetch("safe", 1, "g") == b"1"
            client.ack("safe", 0, "g")
        assert service.stop() == 0
        service.start()
        incarnation = service.kill_child("gateway")
        until(lambda: service.child("gateway")["incarnation"] > incarnation and service.is_ready(), "the gateway")
        with opened(RogWire, port) as client:
            got = []
            for _ in range(13):
                got.append(client.fetch("safe", 0, "g"))
                client.ack("safe", 0, "g")
            assert got == [b"%d" % n for n in range(4, 30, 2)]
            assert client.fetch("safe", 0, "g") == NO_DATA
        found = json.loads(json.dumps(service.status()))
        assert found["rog"] == [f"127.0.0.1:{port}"]
