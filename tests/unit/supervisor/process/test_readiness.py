"""What the service manager and the terminal hear: ready once, then who does not serve."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import structlog
import trio
import trio.testing

from supervisor.process.child import Child
from supervisor.process.readiness import Readiness
from supervisor.process.states import ChildState

URL = "http://127.0.0.1:4000"


@dataclass
class Played:
    name: str
    state: ChildState = ChildState.STARTING
    troubled: bool = False
    phase: str = "open"
    holder: str = ""
    holder_link: tuple[str, str] = ("", "")
    done_bytes: int = 0
    total_bytes: int = 0
    decided = Child.decided


class Fleet(list[Played]):
    complete = False

    @property
    def serving(self) -> bool:
        return any(each.state is ChildState.SERVING for each in self)


@dataclass
class Manager:
    said: list[str] = field(default_factory=list)

    def ready(self, status: str) -> None:
        self.said.append(f"ready: {status}")

    def status(self, status: str) -> None:
        self.said.append(status)

    def busy(self, status: str, more_s: int) -> None:
        self.said.append(f"busy: {status}")


class Scene:
    def __init__(self, *, takes_over: bool = False, forwards: bool = False) -> None:
        self.shards = [Played("shard-00"), Played("shard-01")]
        self.gateways = Fleet([Played("gateway-0"), Played("gateway-1")])
        self.manager = Manager()
        self.announced: list[str] = []
        self.readiness = Readiness(
            cast(Any, self.shards),
            cast(Any, self.gateways),
            cast(Any, self.manager),
            structlog.get_logger(),
            self.announced.append,
            URL,
            cast(Any, SimpleNamespace(shards=2, path=Path("/data"))),
            takes_over,
            forwards,
        )

    def serve(self, *names: str) -> None:
        for each in (*self.shards, *self.gateways):
            if each.name in names or not names:
                each.state, each.phase = ChildState.SERVING, "ready"
        self.gateways.complete = self.gateways.serving
        self.readiness.served = any(each.state is ChildState.SERVING for each in self.shards)
        self.readiness.report()


def test_it_is_ready_once_when_all_serve() -> None:
    scene = Scene()
    scene.serve("shard-00", "gateway-0", "gateway-1")
    assert scene.announced == []
    scene.serve()
    scene.readiness.report()
    assert scene.announced == [f"topics is ready at {URL} (2 shards, data in /data)"]
    assert scene.manager.said == [f"ready: serving {URL}", f"serving {URL}"]
    assert scene.readiness.ready


def test_a_start_waits_for_no_shard_that_is_in_trouble_and_names_it() -> None:
    scene = Scene()
    scene.shards[1].troubled = True
    scene.serve("shard-00", "gateway-0", "gateway-1")
    assert scene.manager.said == [f"ready: serving {URL}, without shard-01"]
    assert not scene.readiness.ready


def test_it_is_not_ready_before_the_gateways_have_reached_the_shards() -> None:
    scene = Scene()
    scene.serve("shard-00", "shard-01")
    assert scene.announced == []


def test_later_it_names_what_does_not_serve() -> None:
    scene = Scene()
    scene.serve()
    scene.gateways[1].state = ChildState.WAITING
    scene.readiness.report()
    scene.gateways[0].state = ChildState.WAITING
    scene.readiness.report()
    scene.serve()
    scene.shards[0].state = ChildState.WAITING
    scene.readiness.report()
    assert scene.manager.said[1:] == [
        f"serving {URL}, without gateway-1",
        "not ready: gateway-0, gateway-1",
        f"serving {URL}",
        "not ready: shard-00",
    ]


def test_a_standby_has_started_too_and_is_announced_again_once_it_serves() -> None:
    for takes_over, how in ((False, "; `topics takeover` if that one is gone"), (True, "")):
        scene = Scene(takes_over=takes_over)
        scene.shards[0].phase, scene.shards[0].holder = "standby", "http://other"
        for _ in range(2):
            scene.readiness.report()
        assert scene.announced == [f"topics stands by at {URL}: http://other holds the shards{how}"]
        scene.shards[0].holder = ""
        scene.serve()
        assert len(scene.announced) == 2
        assert not scene.readiness.stands_by


def test_with_other_machines_a_shard_that_one_of_them_holds_counts_as_served() -> None:
    for forwards in (True, False):
        scene = Scene(takes_over=True, forwards=forwards)
        elsewhere = scene.shards[1]
        elsewhere.phase, elsewhere.holder, elsewhere.holder_link = "standby", "http://b", ("tcp://b:1", "key")
        scene.serve("shard-00", "gateway-0", "gateway-1")
        assert (scene.announced == [f"topics is ready at {URL} (2 shards, data in /data)"]) is forwards
        assert scene.readiness.ready is forwards
        elsewhere.holder_link = ("", "")
        assert not scene.readiness.ready, "a machine that cannot be reached serves nothing here"


def test_with_other_machines_one_that_holds_no_shard_is_ready_too() -> None:
    scene = Scene(takes_over=True, forwards=True)
    for each in scene.shards:
        each.phase, each.holder, each.holder_link = "standby", "http://b", ("tcp://b:1", "key")
    scene.serve("gateway-0", "gateway-1")
    assert len(scene.announced) == 1
    assert not scene.readiness.stands_by


async def test_progress_is_reported_every_two_seconds(autojump_clock: trio.testing.MockClock) -> None:
    scene = Scene()
    shard = scene.shards[0]
    shard.phase, shard.done_bytes, shard.total_bytes = "replay", 50, 200
    for _ in range(5):
        scene.readiness.progress(cast(Any, shard))
        await trio.sleep(1)
    assert scene.manager.said == ["busy: shard-00: replay 25 %"] * 2
