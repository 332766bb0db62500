"""The Walrus document against several machines: each is a node, any node takes any command, and `STATE` and `METRICS`
say which node led and leads."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.test_forwarding import HEARS, PATIENCE_S
from tests.e2e.test_roles import machine
from tests.support.protocols import MinimalWalrus, WalrusWire, opened, ports
from tests.support.service import Service, until

SEGMENT = 5
NODES = [1, 2, 3]


def asked(running: Service, command: str) -> str:
    """An answer; "" if the machine does not take connections."""
    try:
        with opened(WalrusWire, ports(running, "walrus")[0]) as wire:
            return str(wire.ask(command))
    except (OSError, KeyError, IndexError):
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
    running.port = int(running.status()["url"].rpartition(":")[2])
    return running.is_ready()


def put(running: Service, entry: str) -> None:
    """As the document says: try again in a moment while the leadership is transferred."""

    def done() -> bool:
        answer = asked(running, f"PUT logs {entry}")
        assert answer in ("", "OK") or answer.startswith("ERR NotLeaderForPartition"), answer
        return answer == "OK"

    until(done, f"{entry} to be put", PATIENCE_S)


@pytest.fixture
def three(tmp_path: Path) -> Iterator[list[Service]]:
    settings = {"TOPICS_WALRUS_LISTEN": "127.0.0.1:0", "TOPICS_WALRUS_SEGMENT_ENTRIES": str(SEGMENT)}
    made = [machine(tmp_path, name, **HEARS, **settings) for name in ("one", "two", "three")]
    try:
        for each in made:
            each.start(wait=False)
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
    until(lambda: agree(*three), "three nodes that agree", PATIENCE_S)
    assert metrics(lost)["id"] == first, "a restart gave the machine another number"
    assert state(lost, "logs")["segment_leaders"]["1"] == first
    got = []
    while (answer := asked(lost, "GET logs")).startswith("OK "):
        got.append(answer[3:])
    assert answer == "EMPTY"
    wanted = [f"{part} {number}" for part in ("first", "second") for number in range(SEGMENT)]
    assert [entry for at, entry in enumerate(got) if entry not in got[:at]] == wanted
