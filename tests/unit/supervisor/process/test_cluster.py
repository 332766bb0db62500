"""Where a machine listens for others, and what its processes know of them."""

from __future__ import annotations

import socket
from contextlib import closing
from math import inf
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from proto.ipc.control import (
    Control,
    Followed,
    Holder,
    Local,
    Machine,
    Members,
    Orders,
    Ping,
    Placement,
    Step,
    StepDone,
    TakeOver,
)
from supervisor.config.settings import Settings
from supervisor.process.cluster import Address, Machines, address
from supervisor.process.datadir import DataDir, Manifest
from supervisor.process.listener import ListenError
from supervisor.process.states import ChildState

BUCKET = {"bucket": "file:///bucket", "replication": "sync"}


def directory(path: Path) -> DataDir:
    return DataDir(path, Manifest(4, 0), ())


def given(listen: str, **more: Any) -> Settings:
    return Settings(cluster_listen=listen, **(BUCKET | more))


@pytest.mark.parametrize(
    ("listen", "advertise", "of_shard_2", "at"),
    [
        ("127.0.0.1:4100", "", "127.0.0.1:4102", "tcp://127.0.0.1"),
        ("127.0.0.1:0", "", "127.0.0.1:0", "tcp://127.0.0.1"),
        ("[::1]:4100", "", "[::1]:4102", "tcp://[::1]"),
        ("localhost:4100", "", "127.0.0.1:4102", "tcp://localhost"),
        ("0.0.0.0:4100", "http://one.example:4000", "0.0.0.0:4102", "tcp://one.example"),
        ("0.0.0.0:4100", "http://[fd00::1]:4000", "0.0.0.0:4102", "tcp://[fd00::1]"),
        ("0.0.0.0:4100", "", "0.0.0.0:4102", f"tcp://{socket.gethostname()}"),
    ],
)
def test_shards_listen_at_ports_in_a_row_and_are_found_where_the_machine_is(
    listen: str, advertise: str, of_shard_2: str, at: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def resolved(host: str, port: int, **_: Any) -> list[Any]:
        host = "127.0.0.1" if host == "localhost" else host
        return [(socket.AF_INET, socket.SOCK_STREAM, 0, "", (host, port))]

    monkeypatch.setattr(socket, "getaddrinfo", resolved)
    with closing(DataDir.open(tmp_path / "data", 1, 1)) as data:
        found = address(given(listen, advertise=advertise), data)
        assert found is not None
        assert (found.of(2), found.at, found.machine, found.place) == (of_shard_2, at, data.machine(), data.place())


def test_without_the_setting_no_machine_is_heard(tmp_path: Path) -> None:
    assert address(Settings(**BUCKET), directory(tmp_path)) is None  # type: ignore[arg-type]
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (given("127.0.0.1:4100", bucket=""), "TOPICS_BUCKET"),
        (given("127.0.0.1:4100", replication="async"), "TOPICS_REPLICATION=sync"),
        (given("127.0.0.1"), "host:port"),
        (given("127.0.0.1:1,127.0.0.1:2"), "one address"),
        (given(","), "one address"),
        (given("127.0.0.1:65534"), "ports up to 65537"),
    ],
)
def test_what_cannot_be_listened_on_is_refused(settings: Settings, said: str, tmp_path: Path) -> None:
    with pytest.raises(ListenError, match=said) as raised:
        address(settings, directory(tmp_path))
    assert "TOPICS_CLUSTER_LISTEN" in str(raised.value)


class FakeChild:
    """What `Machines` looks at of a child."""

    def __init__(self, state: ChildState = ChildState.SERVING, phase: str = "ready", holder: str = "") -> None:
        self.state, self.phase, self.holder, self.holder_link = state, phase, holder, ("", "")
        self.heard: Any = None
        self.did: list[Any] = []

    async def tell(self, message: Control) -> None:
        self.did.append(message)

    async def rest(self, deadline_s: float) -> None:
        self.did.append("rest")

    def want(self) -> None:
        self.did.append("want")

    def unwant(self) -> None:
        self.did.append("unwant")

    def held_by(self, found: Holder) -> None:
        self.did.append(found)

    def learn(self, found: Holder) -> None:
        self.did.append(found)

    def done(self) -> list[Any]:
        """What it was to do since the last question, besides what it was told in any case."""
        did, self.did = self.did, []
        return [each for each in did if not isinstance(each, Members | Orders)]


class Scene:
    """Machines, the roster and two shards."""

    def __init__(self) -> None:
        self.told: list[str] = []
        at = Address("127.0.0.1", 4100, "tcp://one", "id", "place")
        changed, reported = lambda: self.told.append("shards"), lambda: self.told.append("roster")
        self.machines: Any = Machines(at, changed, reported)
        self.roster, self.shards = FakeChild(), [FakeChild(), FakeChild()]
        self.machines.join(self.roster, self.shards, lambda index: index == 0)

    def news(self, child: FakeChild) -> list[Control]:
        found: list[Control] = self.machines.news(child)
        return found


@pytest.fixture
def scene() -> Scene:
    return Scene()


STEP = Step(1, 7, 3, "saving")
HOLDERS = [Holder(), Holder("http://b", "tcp://b:1", "key")]
PLACED = Placement([0, 2], wanted=[0], holders=HOLDERS)


def test_a_shard_is_to_claim_nothing_before_the_roster_has_said_so(scene: Scene) -> None:
    assert scene.machines.of_shard(1).rank == inf
    assert scene.news(scene.shards[1]) == [Members({}), Orders(inf)]
    scene.roster.heard(Placement([0, 2], STEP))
    assert scene.told == ["shards"]
    assert [scene.news(shard)[1] for shard in scene.shards] == [Orders(0), Orders(2, STEP)]
    assert (scene.machines.of_shard(1).rank, scene.machines.of_shard(1).member) == (2, "id")


def test_a_shard_that_is_moved_is_told(scene: Scene) -> None:
    scene.roster.heard(Placement([0, 2], moving=[1]))
    assert [scene.news(shard)[1] for shard in scene.shards] == [Orders(0), Orders(2, moving=True)]


def test_when_the_roster_dies_ranks_stay_and_what_is_given_away_is_kept(scene: Scene) -> None:
    scene.roster.heard(Placement([0, 2], STEP))
    scene.machines.saw(scene.roster)
    assert scene.machines.placement.step == STEP
    scene.roster.state = ChildState.WAITING
    scene.machines.saw(scene.roster)
    assert scene.news(scene.shards[1])[1] == Orders(2)
    assert scene.told == ["shards"] * 2
    scene.machines.saw(scene.roster)
    assert scene.told == ["shards"] * 2


def test_a_shard_whose_term_is_being_ended_takes_no_more_requests(scene: Scene) -> None:
    assert scene.machines.phase(1, "ready") == "ready"
    scene.roster.heard(Placement([0, 0], replace(STEP, state="refusing")))
    assert scene.machines.phase(1, "ready") == "ready", "it refuses them itself"
    scene.roster.heard(Placement([0, 0], replace(STEP, state="ending")))
    assert [scene.machines.phase(index, "ready") for index in (0, 1)] == ["ready", "stopping"]
    assert scene.machines.phase(1, "standby") == "standby", "the next process follows"


def test_the_roster_hears_what_the_shards_report_until_they_follow_no_more(scene: Scene) -> None:
    scene.shards[1].phase = "open"
    scene.shards[1].heard(Followed(0.2))
    scene.shards[0].heard(StepDone(3, "saved"))
    for scene.shards[1].phase in ("open", "standby"):
        scene.machines.saw(scene.shards[1])
    assert scene.news(scene.roster) == [Local({1: 0.2}, StepDone(3, "saved"))]
    scene.shards[1].phase = "replay"
    scene.machines.saw(scene.shards[1])
    assert scene.news(scene.roster) == [Local({}, StepDone(3, "saved"))]
    assert scene.told == ["roster"] * 3


async def seen_to(scene: Scene, index: int) -> list[Any]:
    await scene.machines.see_to(scene.shards[index], 1.0)
    return scene.shards[index].done()


async def test_before_the_roster_has_decided_shards_with_files_have_processes(scene: Scene) -> None:
    assert [shard.done() for shard in scene.shards] == [[], ["unwant"]]
    scene.shards[0].phase, scene.shards[0].holder = "standby", "http://b"
    scene.machines.saw(scene.shards[0])
    assert await seen_to(scene, 0) == []
    scene.roster.heard(Placement([0, 2]))
    assert [await seen_to(scene, index) for index in (0, 1)] == [[], []]


async def test_a_shard_is_started_when_it_is_wanted_and_the_holder_of_another_is_known(scene: Scene) -> None:
    for shard in scene.shards:
        shard.done()
    scene.roster.heard(PLACED)
    assert [shard.done() for shard in scene.shards] == [["want", HOLDERS[0]], [HOLDERS[1]]]
    scene.shards[1].phase = "elsewhere"
    scene.machines.saw(scene.shards[1])
    assert scene.shards[1].done() == [HOLDERS[1]], "also when its process ends later"


@pytest.mark.parametrize(
    ("state", "phase", "holder", "rests"),
    [
        (ChildState.STARTING, "standby", "http://b", True),
        (ChildState.HELD, "failed", "", True),
        (ChildState.STARTING, "standby", "", False),  # it may be claiming
        (ChildState.STARTING, "open", "", False),  # it may hold the shard
        (ChildState.STARTING, "replay", "", False),
        (ChildState.SERVING, "ready", "", False),
        (ChildState.ELSEWHERE, "elsewhere", "http://b", False),
    ],
)
async def test_only_a_process_that_follows_is_ended(
    scene: Scene, state: ChildState, phase: str, holder: str, rests: bool
) -> None:
    scene.roster.heard(replace(PLACED, wanted=[]))
    scene.shards[0].state, scene.shards[0].phase, scene.shards[0].holder = state, phase, holder
    scene.shards[0].done()
    assert await seen_to(scene, 0) == (["rest"] if rests else [])
    scene.machines.saw(scene.roster)
    await scene.machines.see_to(scene.roster, 1.0)
    assert scene.roster.done() == [Local({})]


async def test_when_the_roster_dies_what_it_wanted_stays(scene: Scene) -> None:
    scene.roster.heard(PLACED)
    scene.roster.state = ChildState.WAITING
    scene.machines.saw(scene.roster)
    scene.shards[1].state, scene.shards[1].phase, scene.shards[1].holder = ChildState.STARTING, "standby", "http://b"
    scene.shards[1].done()
    assert await seen_to(scene, 1) == ["rest"]


async def test_a_shard_without_a_process_is_started_to_be_taken_over_and_told_once(scene: Scene) -> None:
    scene.roster.heard(PLACED)
    shard = scene.shards[1]
    shard.state, shard.phase = ChildState.ELSEWHERE, "elsewhere"
    for each in scene.shards:
        each.done()
    scene.machines.take_over()
    assert [each.done() for each in scene.shards] == [[], ["want"]]
    shard.state, shard.phase = ChildState.STARTING, "open"
    assert await seen_to(scene, 1) == [TakeOver()]
    shard.phase, shard.holder = "standby", "http://b"
    assert await seen_to(scene, 1) == [], "it is not ended before it has the shard"
    shard.state, shard.phase = ChildState.SERVING, "ready"
    assert await seen_to(scene, 1) == []
    shard.state, shard.phase = ChildState.STARTING, "standby"
    assert await seen_to(scene, 1) == ["rest"], "another machine has it again"


def test_a_machine_has_left_when_others_hold_all_its_shards(scene: Scene) -> None:
    for shard in scene.shards:
        shard.phase, shard.holder = "standby", "http://b"
    assert not scene.machines.left
    scene.machines.leave()
    assert scene.machines.left
    scene.shards[0].phase = "elsewhere"
    assert scene.machines.left
    assert scene.news(scene.roster) == [Local({}, None, leaving=True)]
    scene.shards[1].holder = ""
    assert not scene.machines.left, "nobody is known to hold it"
    scene.shards[1].phase = "ready"
    assert not scene.machines.left


def test_shards_hear_the_members_that_the_roster_has_reported() -> None:
    changes: list[int] = []
    machines = Machines(Address("127.0.0.1", 4100, "tcp://one", "one"), lambda: changes.append(1), lambda: None)
    assert machines.of_shard(1).members == {}
    known = [Machine("one", 1, "http://one"), Machine("two", 2)]
    machines.heard(Members({"key": "mB"}, known))
    machines.heard(Ping())
    assert changes == [1]
    shard, gateway = machines.of_shard(1), machines.of_asker()
    assert (shard.members, shard.listen, shard.at) == ({"key": "mB"}, "127.0.0.1:4101", "tcp://one")
    assert (gateway.members, gateway.listen, gateway.at) == ({}, "", "")
    assert (gateway.machine, gateway.public, gateway.member) == (shard.machine, shard.public, shard.member)
    assert (gateway.member, gateway.known) == ("one", known)


def test_keys_and_nonces_are_new_for_each_start_and_the_secret_is_not_shown() -> None:
    made = [Machines(Address("127.0.0.1", 0, ""), lambda: None, lambda: None).of_asker() for _ in range(2)]
    assert len({each.machine for each in made}) == len({each.secret for each in made}) == 2
    assert all(each.machine.startswith("m") for each in made)
    assert made[0].secret not in repr(made[0])
