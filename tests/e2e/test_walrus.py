"""The Walrus document, sentence by sentence, against a real service."""

from __future__ import annotations

import json
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.protocols import MinimalWalrus, WalrusWire, framed, opened, ports
from tests.support.service import Service, until

ADDRESSES = "127.0.0.1:0,127.0.0.1:0,127.0.0.1:0"


@pytest.fixture(scope="module")
def walrus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    directory: Path = tmp_path_factory.mktemp("service")
    with Service(directory, TOPICS_WALRUS_LISTEN=ADDRESSES, TOPICS_WALRUS_SEGMENT_ENTRIES="5") as running:
        yield running


@pytest.fixture
def client(walrus: Service) -> Iterator[WalrusWire]:
    with opened(WalrusWire, ports(walrus, "walrus")[0]) as connection:
        yield connection


def test_the_minimal_client_of_the_document_works(walrus: Service) -> None:
    client = MinimalWalrus(port=ports(walrus, "walrus")[0])
    assert client.register("events") == "OK"
    assert client.put("events", "user_signup") == "OK"
    assert client.get("events") == "user_signup"
    assert client.get("events") is None
    client.close()


def test_register_is_idempotent_and_changes_nothing_that_is_there(walrus: Service, client: WalrusWire) -> None:
    assert client.ask("REGISTER twice") == "OK"
    assert client.ask("REGISTER twice") == "OK"
    assert walrus.request("GET", "/v0/topics/twice")[1]["config"]["durability"] == "fsync"
    walrus.request("PUT", "/v0/topics/mine", {"durability": "memory", "cap_records": 7})
    assert client.ask("REGISTER mine") == "OK"
    config = walrus.request("GET", "/v0/topics/mine")[1]["config"]
    assert (config["durability"], config["cap_records"]) == ("memory", 7)


def test_put_and_get_of_the_document(client: WalrusWire) -> None:
    client.ask("REGISTER logs")
    assert client.ask("PUT logs User login: alice@example.com") == "OK"
    assert client.ask('PUT logs {"event":"purchase","amount":99.99}') == "OK"
    assert client.ask("GET logs") == "OK User login: alice@example.com"
    assert client.ask("GET logs") == 'OK {"event":"purchase","amount":99.99}'
    assert client.ask("GET logs") == "EMPTY"
    assert client.ask("GET logs") == "EMPTY"
    assert client.ask("PUT logs later") == "OK"
    assert client.ask("GET logs") == "OK later"


def test_what_is_not_registered_is_unknown(walrus: Service, client: WalrusWire) -> None:
    for command in ("PUT nowhere x", "GET nowhere", "STATE nowhere"):
        assert client.ask(command) == "ERR unknown topic"
    assert walrus.request("GET", "/v0/topics/nowhere")[0] == 404, "a PUT created its topic"


def test_errors_leave_the_connection_usable(client: WalrusWire) -> None:
    client.ask("REGISTER errors")
    for bad in ("NONSENSE", b"PUT errors \xff\xfe", "REGISTER a/b", "PUT errors", "PUT errors   ", "GET", ""):
        assert client.ask(bad).startswith("ERR "), bad
    assert client.ask("PUT errors fine") == "OK"
    assert client.ask("GET errors") == "OK fine"


def test_payloads_up_to_the_frame_and_not_beyond(client: WalrusWire) -> None:
    client.ask("REGISTER large")
    longest = "x" * (65536 - len("PUT large "))
    assert client.ask(f"PUT large {longest}") == "OK"
    assert client.ask(f"PUT large {longest}x").startswith("ERR ")
    assert client.ask("GET large") == f"OK {longest}"
    assert client.ask("GET large") == "EMPTY", "what was refused was kept"


def test_a_length_beyond_16_mib_is_answered_and_ends_the_connection(client: WalrusWire) -> None:
    client.send(struct.pack("<I", (16 << 20) + 1) + b"PUT")
    assert client.frame().startswith("ERR ")
    assert client.ended()


def test_text_survives_as_it_is(walrus: Service, client: WalrusWire) -> None:
    client.ask("REGISTER text")
    payloads = [
        'quote " and \\ and \u0001',
        "  two spaces lead",
        "é ∑ 🦭",
        "line\nbreak",
        "OK",
        "EMPTY",
        '"json"',
        "\u2028x",
    ]
    for payload in payloads:
        assert client.ask(f"PUT text {payload}") == "OK"
    records = walrus.request("POST", "/v0/topics/text/diff", {"from_seq": 0})[1]["records"]
    assert [record["data"] for record in records] == payloads
    assert [client.ask("GET text") for _ in payloads] == [f"OK {payload}" for payload in payloads]
    assert client.ask("PUT text dropped behind \t\r\n ") == "OK"
    assert client.ask("GET text") == "OK dropped behind"


def test_records_of_http_are_read_as_text(walrus: Service, client: WalrusWire) -> None:
    records: list[Any] = ["plain", {"a": [1, 2.5]}, 17, None, "x" * 65533, "y" * 65534, "last"]
    walrus.request("POST", "/v0/topics/web", {"records": [{"data": each} for each in records]})
    got = [client.ask("GET web") for _ in range(5)]
    assert got[:4] == ["OK plain", 'OK {"a": [1, 2.5]}', "OK 17", "OK null"]
    assert got[4] == "OK " + "x" * 65533
    assert client.ask("GET web").startswith("ERR ")
    assert client.ask("GET web") == "OK last", "the cursor did not move past what fits no frame"


def test_every_address_serves_every_topic(walrus: Service) -> None:
    a, b, c = ports(walrus, "walrus")
    with opened(WalrusWire, a) as one, opened(WalrusWire, b) as two, opened(WalrusWire, c) as three:
        assert one.ask("REGISTER nodes") == "OK"
        assert two.ask("PUT nodes first") == "OK"
        assert three.ask("PUT nodes second") == "OK"
        assert two.ask("GET nodes") == "OK first"
        assert one.ask("GET nodes") == "OK second"
        assert three.ask("GET nodes") == "EMPTY"


def test_the_cursor_is_shared_with_http(walrus: Service, client: WalrusWire) -> None:
    client.ask("REGISTER shared")
    for n in range(4):
        client.ask(f"PUT shared {n}")
    client.ask("GET shared")
    found = walrus.request("GET", "/v0/topics/shared/cursors/walrus")[1]
    assert (found["seq"], found["lag"]) == (1, 3)
    walrus.request("PUT", "/v0/topics/shared/cursors/walrus", {"seq": 3})
    assert client.ask("GET shared") == "OK 3"


def test_state_tells_of_sealed_segments_and_their_leaders(client: WalrusWire) -> None:
    client.ask("REGISTER segments")
    assert json.loads(client.ask("STATE segments")) == {
        "current_segment": 1,
        "leader_node": 1,
        "last_sealed_entry_offset": 0,
        "sealed_segments": {},
        "segment_leaders": {"1": 1},
    }
    for n in range(5):
        assert json.loads(client.ask("STATE segments"))["current_segment"] == 1
        client.ask(f"PUT segments {n}")
    assert json.loads(client.ask("STATE segments"))["current_segment"] == 2, "a segment that is full is sealed"
    for n in range(5, 12):
        client.ask(f"PUT segments {n}")
    state = json.loads(client.ask("STATE segments"))
    assert list(state.items()) == [
        ("current_segment", 3),
        ("leader_node", 1),
        ("last_sealed_entry_offset", 10),
        ("sealed_segments", {"1": 5, "2": 5}),
        ("segment_leaders", {"1": 1, "2": 1, "3": 1}),
    ]
    assert [client.ask("GET segments") for _ in range(13)] == [*[f"OK {n}" for n in range(12)], "EMPTY"]


def test_metrics_show_that_one_machine_is_one_node_whatever_the_number_of_its_addresses(walrus: Service) -> None:
    for port in ports(walrus, "walrus"):
        with opened(WalrusWire, port) as client:
            answer = client.ask("METRICS")
            assert answer.startswith("{")
            found = json.loads(answer)
        assert list(found) == [
            "id",
            "current_term",
            "current_leader",
            "state",
            "last_log_index",
            "last_applied",
            "membership_config",
        ]
        assert (found["id"], found["current_term"], found["current_leader"]) == (1, 1, 1)
        assert found["state"] == "Leader"
        assert found["last_log_index"] >= found["last_applied"] > 0
        assert found["membership_config"] == {"voters": [1], "learners": []}


def test_bytes_one_at_a_time_and_a_hundred_frames_at_once(client: WalrusWire) -> None:
    client.ask("REGISTER pieces")
    for byte in framed("PUT pieces 0"):
        client.send(bytes([byte]))
    assert client.frame() == "OK"
    client.send(b"".join(framed(f"PUT pieces {n}") for n in range(1, 100)) + framed("STATE nothing"))
    assert [client.frame() for _ in range(100)] == ["OK"] * 99 + ["ERR unknown topic"]
    client.send(framed("GET pieces") * 100)
    assert [client.frame() for _ in range(100)] == [f"OK {n}" for n in range(100)], "answers out of order"


def test_a_client_that_leaves_in_the_middle_of_a_command_did_nothing(walrus: Service, client: WalrusWire) -> None:
    client.ask("REGISTER half")
    with opened(WalrusWire, ports(walrus, "walrus")[0]) as other:
        other.send(framed("PUT half never")[:-1])
    assert client.ask("GET half") == "EMPTY"


def test_commands_and_connections_are_counted(walrus: Service, client: WalrusWire) -> None:
    client.ask("REGISTER counted")
    client.ask("GET counted")
    client.ask("BOGUS")

    def counted() -> Any:
        """The metrics, once they have it all: figures of other gateways may be a second old."""
        connection = walrus.connect()
        connection.request("GET", "/v0/metrics", headers={"Accept": "application/json"})
        found = json.loads(connection.getresponse().read())
        connection.close()
        commands = {(e["labels"]["command"], e["labels"]["result"]) for e in found["topics_walrus_commands_total"]}
        everything = {("register", "ok"), ("get", "empty"), ("none", "error")} <= commands
        return found if everything and found["topics_walrus_connections"] >= 1 else None

    found = until(counted, "the commands and the connection to be counted")
    assert "topics_rog_connections" not in found, "a protocol that is not spoken has metrics"


# The command line


def cli(walrus: Service, *arguments: str, stdin: str = "") -> tuple[int, str]:
    address = walrus.status()["walrus"][0]
    command = [sys.executable, "-m", "supervisor.cli", "walrus", "--addr", address, *arguments]
    done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=30, check=False)
    return done.returncode, done.stdout


def test_the_command_line_client(walrus: Service) -> None:
    assert cli(walrus, "register", "cli") == (0, "OK\n")
    assert cli(walrus, "put", "cli", "hello world") == (0, "OK\n")
    status, text = cli(walrus, "get", "unheard-of")
    assert (status, text) == (1, "ERR unknown topic\n")
    script = "get cli\nGET cli\n\nhelp\nstate cli\nmetrics\nexit\n"
    status, text = cli(walrus, stdin=script)
    lines = text.splitlines()
    assert status == 0
    assert lines[:2] == ["OK hello world", "EMPTY"]
    assert json.loads(lines[3])["current_segment"] == 1
    assert json.loads(lines[4])["current_term"] == 1


# Cursor truth


class Consumer(threading.Thread):
    """Sends GET until told to stop. Reconnects when the connection breaks, and counts the reconnects."""

    def __init__(self, port: int, topic: str, stop: threading.Event) -> None:
        super().__init__()
        self.port, self.topic, self.stop = port, topic, stop
        self.got: list[str] = []
        self.broken = 0

    def run(self) -> None:
        while not self.stop.is_set():
            asked = False
            try:
                with opened(WalrusWire, self.port) as client:
                    while not self.stop.is_set():
                        asked = True
                        answer = client.ask(f"GET {self.topic}")
                        asked = False
                        if answer.startswith("OK "):
                            self.got.append(answer[3:])
                        elif answer.startswith("ERR NotLeaderForPartition"):
                            self.broken += 1
                            self.stop.wait(0.05)
                        else:
                            assert answer == "EMPTY", answer
                            self.stop.wait(0.01)
            except OSError:
                self.broken += asked
                self.stop.wait(0.05)


def test_eight_consumers_get_each_entry_once_through_kills_and_restarts(tmp_path: Path) -> None:
    """Entries may be missing only where a response was lost with its connection. No entry comes twice, and no
    acknowledged one is lost."""
    with Service(tmp_path, TOPICS_WALRUS_LISTEN="127.0.0.1:0") as service:
        (port,) = ports(service, "walrus")
        service.environment["TOPICS_WALRUS_LISTEN"] = f"127.0.0.1:{port}"
        with opened(WalrusWire, port) as writer:
            assert writer.ask("REGISTER truth") == "OK"
        stop = threading.Event()
        consumers = [Consumer(port, "truth", stop) for _ in range(8)]
        for each in consumers:
            each.start()
        acked: list[str] = []

        def write(first: int, count: int) -> None:
            with opened(WalrusWire, port) as writer:
                for n in range(first, first + count):
                    assert writer.ask(f"PUT truth {n}") == "OK"
                    acked.append(str(n))

        def seen() -> int:
            return sum(len(each.got) for each in consumers)

        try:
            write(0, 400)
            for child in ("gateway", "shard-00", "shard-01"):
                incarnation = service.kill_child(child)

                def healed(child: str = child, incarnation: int = incarnation) -> bool:
                    return bool(service.child(child)["incarnation"] > incarnation) and service.is_ready()

                until(healed, f"{child} to be back")
                write(len(acked), 200)
            service.kill_group()
            service.start()
            write(len(acked), 200)
            assert service.stop() == 0
            service.start()
            write(len(acked), 200)
            lossy = len(consumers) * 5
            until(lambda: seen() >= len(acked) - lossy, "most entries to be consumed")
            rest: list[str] = []

            def drained() -> bool:
                with opened(WalrusWire, port) as client:
                    while (answer := client.ask("GET truth")).startswith("OK "):
                        rest.append(answer[3:])
                return answer == "EMPTY"

            until(drained, "the end of the topic")
        finally:
            stop.set()
            for each in consumers:
                each.join(30)
        got = rest + [entry for each in consumers for entry in each.got]
        assert len(got) == len(set(got)), "an entry was handed out twice"
        assert set(got) <= set(acked)
        missing = len(acked) - len(got)
        broken = sum(each.broken for each in consumers)
        assert missing <= broken, f"{missing} entries are missing, but only {broken} answers were lost"
        records = []
        cursor = 0
        while cursor < len(acked):
            page = service.request("POST", "/v0/topics/truth/diff", {"from_seq": cursor, "limit": 1000})[1]
            records += [record["data"] for record in page["records"]]
            cursor = page["next_from_seq"]
        assert records == acked, "what was acknowledged is not what is kept"


def test_a_stop_loses_no_answer_of_a_client_that_has_sent_ahead_and_reads_late(tmp_path: Path) -> None:
    with Service(tmp_path, TOPICS_WALRUS_LISTEN="127.0.0.1:0") as service:
        (port,) = ports(service, "walrus")
        with opened(WalrusWire, port) as busy:
            assert busy.ask("REGISTER late") == "OK"
            busy.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
            busy.send(framed("PUT late x") * 20_000)
            until(lambda: service.request("GET", "/v0/topics/late")[1]["head_seq"] > 2_000, "answers to wait")
            stopping = threading.Thread(target=service.stop)
            stopping.start()
            acked = 0
            try:
                while busy.frame() == "OK":
                    acked += 1
            except ConnectionError:
                pass
            stopping.join(30)
        service.start()
        assert acked == service.request("GET", "/v0/topics/late")[1]["head_seq"]


def test_a_stop_finishes_the_command_in_flight_and_keeps_what_it_acknowledged(tmp_path: Path) -> None:
    with Service(tmp_path, TOPICS_WALRUS_LISTEN="127.0.0.1:0") as service:
        (port,) = ports(service, "walrus")
        acked = 0
        with opened(WalrusWire, port) as idle, opened(WalrusWire, port) as busy:
            assert idle.ask("REGISTER stop") == "OK"
            busy.send(framed("PUT stop x") * 20_000)
            for _ in range(50):
                assert busy.frame() == "OK"
                acked += 1
            stopping = threading.Thread(target=service.stop)
            stopping.start()
            try:
                while busy.frame() == "OK":
                    acked += 1
            except ConnectionError:
                pass
            assert idle.ended()
            stopping.join(30)
        assert 50 <= acked < 20_000
        service.start()
        assert acked <= service.request("GET", "/v0/topics/stop")[1]["head_seq"] <= acked + 1
