"""The Walrus document against several machines: each is a node, any node takes any command, also behind HAProxy, and
`STATE` and `METRICS` say which node led and leads."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.test_forwarding import HEARS, PATIENCE_S
from tests.e2e.test_roles import machine, records
from tests.support.looped import Looped
from tests.support.programs import free_port, run, running, tool
from tests.support.protocols import MinimalWalrus, WalrusWire, opened, ports
from tests.support.service import Service, until

SEGMENT = 5
NODES = [1, 2, 3]
TTL_MS = 4000
"""Long enough for a busy machine to renew its terms in time."""


def asked(running: Service, command: str) -> str:
    """An answer; "" if the machine does not take connections."""
    try:
        return answer_at(ports(running, "walrus")[0], command)
    except (KeyError, IndexError):
        return ""


def answer_at(port: int, command: str) -> str:
    """An answer at a port; "" if there is none."""
    try:
        with opened(WalrusWire, port) as wire:
            return str(wire.ask(command))
    except OSError:
        return ""


def metrics(running: Service) -> dict[str, Any]:
    return json.loads(asked(running, "METRICS") or "{}")


def state(running: Service, topic: str) -> dict[str, Any]:
    answer = asked(running, f"STATE {topic}")
    return json.loads(answer) if answer.startswith("{") else {}


def agree(*running: Service, voters: list[int] = NODES) -> bool:
    """Whether the nodes know all of each other, and the same leader."""
    found = [metrics(each) for each in running]
    leaders = {each.get("current_leader") for each in found}
    known = all(each.get("id") and each["membership_config"]["voters"] == voters for each in found)
    return known and None not in leaders and len(leaders) == 1


def ready(running: Service) -> bool:
    """Whether a machine reaches every shard."""
    running.port = int(running.status().get("url", ":0").rpartition(":")[2])
    return running.port > 0 and running.is_ready()


def put(running: Service, entry: str) -> None:
    """As the document says: try again in a moment while the leadership is transferred."""

    def done() -> bool:
        answer = asked(running, f"PUT logs {entry}")
        assert answer in ("", "OK") or answer.startswith("ERR NotLeaderForPartition"), answer
        return answer == "OK"

    until(done, f"{entry} to be put", PATIENCE_S)


@pytest.fixture
def three(tmp_path: Path) -> Iterator[list[Service]]:
    settings = HEARS | {"TOPICS_WALRUS_SEGMENT_ENTRIES": str(SEGMENT), "TOPICS_TERM_TTL_MS": str(TTL_MS)}
    made = [
        machine(tmp_path, name, **settings, TOPICS_WALRUS_LISTEN=f"127.0.0.1:{free_port()}")
        for name in ("one", "two", "three")
    ]
    try:
        for each in made:
            each.start(wait=False)
        until(lambda: sorted(len(each.held()) for each in made) == [0, 1, 1], "an even spread", PATIENCE_S)
        until(lambda: agree(*made) and all(map(ready, made)), "three nodes that agree", PATIENCE_S)
        yield made
    finally:
        for each in made:
            each.close()


def test_three_machines_are_three_nodes_and_each_takes_every_command(three: list[Service]) -> None:
    found = [metrics(each) for each in three]
    assert sorted(each["id"] for each in found) == NODES
    for each in found:
        assert each["state"] == ("Leader" if each["id"] == each["current_leader"] else "Follower")
        assert each["current_term"] == found[0]["current_term"] >= 1
        assert each["membership_config"] == {"voters": NODES, "learners": []}
    clients = [MinimalWalrus(port=ports(each, "walrus")[0]) for each in three]
    entries = [f"entry {number}" for number in range(2 * SEGMENT + 1)]
    try:
        assert [client.register("logs") for client in clients] == ["OK"] * 3
        for number, entry in enumerate(entries):
            assert clients[number % 3].put("logs", entry) == "OK"
        assert [clients[number % 3].get("logs") for number in range(1, len(entries) + 1)] == entries
        assert [client.get("logs") for client in clients] == [None] * 3
        told = [json.loads(client.send("STATE logs")) for client in clients]
        after = [json.loads(client.send("METRICS")) for client in clients]
    finally:
        for client in clients:
            client.close()
    assert all(each["last_log_index"] >= each["last_applied"] > len(entries) for each in after)
    leader = told[0]["leader_node"]
    assert leader in NODES
    assert told == 3 * [
        {
            "current_segment": 3,
            "leader_node": leader,
            "last_sealed_entry_offset": 2 * SEGMENT,
            "sealed_segments": {"1": SEGMENT, "2": SEGMENT},
            "segment_leaders": dict.fromkeys(("1", "2", "3"), leader),
        }
    ]


def test_when_a_leader_is_lost_its_segments_stay_its_own_and_another_node_leads_the_next_ones(
    three: list[Service],
) -> None:
    node_of = {metrics(each)["id"]: each for each in three}
    until(lambda: asked(three[0], "REGISTER logs") == "OK", "the topic", PATIENCE_S)
    for number in range(SEGMENT):
        put(three[number % 3], f"first {number}")
    first = state(three[0], "logs")["leader_node"]
    before = metrics(three[0])
    lost = node_of[first]
    lost.kill_group()
    rest = [each for each in three if each is not lost]
    for number in range(SEGMENT):
        put(rest[number % 2], f"second {number}")
    until(lambda: agree(*rest), "the other two to agree", PATIENCE_S)
    told = state(rest[0], "logs")
    assert told == state(rest[1], "logs")
    second = told["leader_node"]
    assert second in NODES
    assert second != first
    assert (told["segment_leaders"]["1"], told["segment_leaders"]["2"]) == (first, second)
    if before["current_leader"] == first:
        assert metrics(rest[0])["current_leader"] != first
        assert metrics(rest[0])["current_term"] > before["current_term"]
    lost.start(wait=False)
    until(lambda: agree(*three) and ready(lost), "three nodes that agree, and reach the shards", PATIENCE_S)
    assert metrics(lost)["id"] == first, "a restart gave the machine another number"
    assert state(lost, "logs")["segment_leaders"]["1"] == first
    got = []
    while (answer := asked(lost, "GET logs")).startswith("OK "):
        got.append(answer[3:])
    assert answer == "EMPTY"
    wanted = [f"{part} {number}" for part in ("first", "second") for number in range(SEGMENT)]
    assert [entry for at, entry in enumerate(got) if entry not in got[:at]] == wanted


@contextmanager
def balanced(directory: Path, nodes: list[Service]) -> Iterator[int]:
    """The port of HAProxy with the example of the document, at addresses of this machine."""
    port, path = free_port(), directory / "haproxy.cfg"
    lines = ["listen walrus-cluster", f"bind 127.0.0.1:{port}", "mode tcp", "balance roundrobin"]
    lines += [f"server node{n} 127.0.0.1:{ports(each, 'walrus')[0]} check" for n, each in enumerate(nodes, 1)]
    path.write_text("\n    ".join(lines) + "\n")
    run(tool("haproxy"), "-c", "-f", str(path))
    with running([tool("haproxy"), "-db", "-f", str(path)]):
        until(lambda: answer_at(port, "METRICS"), "the proxy", PATIENCE_S)
        yield port


class WalrusClient(Looped):
    """Keeps its connection, as the document says, and goes to the next one of `entrances` when it breaks."""

    def __init__(self, name: str, entrances: Sequence[int]) -> None:
        super().__init__(name)
        self._entrances = cycle(entrances)
        self._wire: WalrusWire | None = None
        self.count = 0
        """Commands that were carried out."""

    def ask(self, command: str) -> str:
        """An answer; "" if there is none. What was asked may have been done even so, and if the answer is an error."""
        try:
            if self._wire is None:
                self._wire = WalrusWire(next(self._entrances))
            answer = str(self._wire.ask(command))
        except OSError:
            self.close()
            return ""
        assert not answer.startswith("ERR ") or answer.startswith("ERR NotLeaderForPartition"), answer
        return answer

    def close(self) -> None:
        if self._wire is not None:
            self._wire.close()
            self._wire = None


class Producer(WalrusClient):
    def __init__(self, name: str, entrances: Sequence[int]) -> None:
        super().__init__(name, entrances)
        self.acknowledged: list[str] = []
        self.repeated: Counter[str] = Counter()

    def turn(self) -> None:
        entry = f"{self.name}/{len(self.acknowledged)}"
        if self.ask(f"PUT logs {entry}") == "OK":
            self.acknowledged.append(entry)
            self.count += 1
        else:
            self.repeated[entry] += 1
        self.stopping.wait(0.02)


class Consumer(WalrusClient):
    def __init__(self, name: str, entrances: Sequence[int]) -> None:
        super().__init__(name, entrances)
        self.got: list[str] = []
        self.lost = 0
        """Commands that may have taken an entry."""
        self.empty = False

    def turn(self) -> None:
        answer = self.ask("GET logs")
        if answer.startswith("OK "):
            self.got.append(answer[3:])
            self.count += 1
            return
        self.empty = answer == "EMPTY"
        self.lost += not self.empty
        self.stopping.wait(0.02)


def test_through_haproxy_and_each_node_every_entry_that_was_acknowledged_is_there_while_a_node_is_lost(
    three: list[Service], tmp_path: Path
) -> None:
    with balanced(tmp_path, three) as port:
        entrances = [port, *(ports(each, "walrus")[0] for each in three)]
        for number, entrance in enumerate(entrances):
            client = MinimalWalrus(port=entrance)
            assert (client.register("logs"), client.put("logs", f"{number}")) == ("OK", "OK")
            assert (client.get("logs"), client.get("logs")) == (str(number), None)
            client.close()
        turned = [entrances[n:] + entrances[:n] for n in range(len(entrances))]
        producers = [Producer(f"p{n}", each) for n, each in enumerate(turned)]
        consumers = [Consumer(f"c{n}", each) for n, each in enumerate(turned)]
        clients = [*producers, *consumers]
        for each in clients:
            each.start()

        def all_continue() -> None:
            before = [each.count for each in clients]

            def more() -> bool:
                return all(each.failure or each.count > was + 5 for each, was in zip(clients, before, strict=True))

            until(more, "commands of each client", PATIENCE_S)

        try:
            all_continue()
            leader = until(lambda: state(three[0], "logs"), "a leader", PATIENCE_S)["leader_node"]
            lost = next(each for each in three if metrics(each)["id"] == leader)
            lost.kill_group()
            all_continue()
            lost.start(wait=False)
            until(lambda: ready(lost) and agree(*three), "three nodes that agree", PATIENCE_S)
            all_continue()
        finally:
            for each in clients:
                each.stopping.set()
        for each in clients:
            each.finish()
    check(three, producers, consumers, len(entrances))


def check(nodes: list[Service], producers: list[Producer], consumers: list[Consumer], first: int) -> None:
    """An entry is there once, or as often as its `PUT` was repeated at most; each record was delivered once, or not at
    all if an answer to a `GET` was lost. The topic begins with `first` records that count for nothing."""
    assert any(each.repeated for each in producers), "the loss met no client"
    for node in nodes:
        found = records(node, "logs")[first:]
        there = Counter(found)
        for producer in producers:
            entries = producer.acknowledged
            wrong = [each for each in entries if not 1 <= there[each] <= 1 + producer.repeated[each]]
            assert not wrong, (wrong[:5], producer.repeated)
            firsts = [each for each in dict.fromkeys(found) if each in set(entries)]
            assert firsts == entries, "in order"
        sent = {each for producer in producers for each in (*producer.acknowledged, *producer.repeated)}
        assert there.keys() <= sent
    last = Consumer("last", [ports(each, "walrus")[0] for each in nodes])
    until(lambda: last.turn() or last.empty, "the end of the topic", PATIENCE_S)
    last.close()
    got = Counter(entry for consumer in (*consumers, last) for entry in consumer.got)
    twice = {entry: count for entry, count in got.items() if count > there[entry]}
    assert not twice, "a record was delivered twice"
    assert (there - got).total() <= sum(each.lost for each in (*consumers, last))
