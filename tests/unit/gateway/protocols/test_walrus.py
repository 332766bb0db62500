"""Walrus: when to try again, and why; which nodes there are, and which of them led and lead."""

from __future__ import annotations

import json
from typing import Any

from proto.ipc.control import Cluster, Machine
from proto.ipc.figures import ReplicaFigures, ShardFigures, WalFigures
from proto.ipc.message import Message, Reply, Request
from proto.ipc.operations import Figures, Led, Stats
from proto.ipc.remote import KeyPair
from proto.model.errors import ErrorCode, TopicsError, not_ready, topic_not_found
from proto.wire import walrus
from proto.wire.walrus import Metrics, StateCommand
from tests.behaviour.gateway.test_protocol_refusals import ALL, failing, walrus_says
from tests.support.gateway_stage import Stage, stage

KEYS = KeyPair.new()
KNOWN = [Machine("a", 1, "http://a"), Machine("gone", 2), Machine("c", 3, "http://c")]


def among(*known: Machine) -> Cluster:
    return Cluster("mA", KEYS.public, KEYS.secret, member="a", known=list(known))


async def test_walrus_clients_know_when_to_try_again() -> None:
    for error in (not_ready("shard 0 is starting"), TopicsError(ErrorCode.SHUTTING_DOWN, "bye")):
        for said in await walrus_says(failing(error), *ALL):
            assert said.startswith("ERR NotLeaderForPartition")


async def test_walrus_errors_have_one_line_and_say_why() -> None:
    full = TopicsError(ErrorCode.TOPIC_FULL, 'topic "t" is full:\nit holds 5 of 5 records')
    assert await walrus_says(failing(full), walrus.Put("t", "x")) == ['ERR topic "t" is full: it holds 5 of 5 records']
    for said in await walrus_says(failing(topic_not_found("t")), *ALL[1:]):
        assert said == "ERR unknown topic"


async def asked(here: Stage, command: walrus.Command) -> Any:
    return json.loads((await here.gateway.walrus.session().answer(command))[4:])


async def state(head_seq: int, led: Led | None, cluster: Cluster | None) -> Any:
    def script(request: Request) -> list[Message]:
        assert request.options.led
        return [Reply(request.id, b'{"head_seq":%d}' % head_seq, extra=led)]

    async with stage(script, cluster=cluster, walrus_segment_entries=5) as here:
        return await asked(here, StateCommand("t"))


async def test_a_segment_was_led_by_the_machine_that_wrote_its_last_entry() -> None:
    led = Led(((1, "c"), (5, "gone"), (10, "a"), (13, "c")))
    assert await state(12, led, among(*KNOWN)) == {
        "current_segment": 3,
        "leader_node": 3,
        "last_sealed_entry_offset": 10,
        "sealed_segments": {"1": 5, "2": 5},
        "segment_leaders": {"1": 2, "2": 1, "3": 3},
    }


async def test_a_leader_that_is_not_known_is_node_0() -> None:
    answer = await state(5, Led(((1, ""), (5, "stranger"), (6, "c"))), among(*KNOWN))
    assert answer["segment_leaders"] == {"1": 0, "2": 3}
    for led in (None, Led(((1, ""),))):  # of an earlier release
        assert (await state(5, led, among(*KNOWN)))["segment_leaders"] == {"1": 0, "2": 0}


async def test_a_machine_that_is_alone_is_node_1() -> None:
    for led in (None, Led(((1, ""),))):
        assert (await state(7, led, None))["segment_leaders"] == {"1": 1, "2": 1}


def figures(machine: str = "", term: int = 0, wal: tuple[int, int] = (7, 6)) -> Figures:
    replica = ReplicaFigures(term=term, machine=machine) if term else None
    return Figures(ShardFigures(replica=replica, wal=WalFigures(last_frame=wal[0], synced_frame=wal[1])))


def answers(here: Stage, *of_shards: Figures) -> None:
    for shard, extra in zip(here.shards, of_shards, strict=True):
        shard.own_stats = False
        shard.script = lambda request, extra=extra: [  # type: ignore[misc]
            Reply(request.id, extra=extra if isinstance(request.options, Stats) else None)
        ]


async def test_metrics_tell_of_members_and_of_the_machine_with_shard_0() -> None:
    async with stage(shards=2, cluster=among(*KNOWN)) as here:
        answers(here, figures("c", 7), figures("a", 9, (5, 4)))
        assert await asked(here, Metrics()) == {
            "id": 1,
            "current_term": 7,
            "current_leader": 3,
            "state": "Follower",
            "last_log_index": 12,
            "last_applied": 10,
            "membership_config": {"voters": [1, 3], "learners": []},
        }
        answers(here, figures("a", 8), figures("a", 9))
        found = await asked(here, Metrics())
        assert (found["current_term"], found["current_leader"], found["state"]) == (8, 1, "Leader")


async def test_metrics_tell_that_no_machine_has_shard_0() -> None:
    async with stage(shards=2, cluster=among(*KNOWN)) as here:
        answers(here, figures("c", 7), figures("a", 9, (5, 4)))
        await asked(here, Metrics())
        here.lose_shard(0)
        found = await asked(here, Metrics())
        assert (found["current_leader"], found["state"], found["current_term"]) == (None, "Candidate", 7)
        assert found["last_log_index"] == 5


async def test_news_of_members_count_at_once() -> None:
    async with stage(cluster=among()) as here:
        answers(here, figures("a", 3))
        found = await asked(here, Metrics())
        assert (found["id"], found["current_leader"], found["membership_config"]["voters"]) == (0, None, [])
        here.gateway.shards.machines = KNOWN
        found = await asked(here, Metrics())
        assert (found["id"], found["current_leader"], found["membership_config"]["voters"]) == (1, 1, [1, 3])


async def test_metrics_of_a_machine_that_is_alone() -> None:
    async with stage() as here:
        for extra, term in ((figures(), 1), (figures("", 4), 4)):
            answers(here, extra)
            found = await asked(here, Metrics())
            assert (found["id"], found["current_term"], found["current_leader"]) == (1, term, 1)
            assert (found["state"], found["membership_config"]["voters"]) == ("Leader", [1])
