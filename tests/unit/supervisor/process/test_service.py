"""The service over scripted children: real processes, real signals, no gateway and no shard."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import structlog
import trio
from msgspec.structs import asdict

from supervisor.config import settings
from supervisor.config.keys import Keys, read_file
from supervisor.process.cluster import Address
from supervisor.process.datadir import DataDir
from supervisor.process.forks import GATEWAY, ROSTER, SHARD, Forked, ForkServer
from supervisor.process.listener import listen, resolve
from supervisor.process.notify import Notifier
from supervisor.process.opened import Opened
from supervisor.process.rundir import RuntimeDir
from supervisor.process.service import EXIT_BEYOND_HELP, Service
from tests.support import fake_child
from tests.support.machine import ROOT
from tests.support.service import Watched

DEADLINE_S = 60


class Scripted(ForkServer):
    """A fork server whose children are scripted: by module, how they behave."""

    def __init__(self, path: Path, behaviours: dict[str, str]) -> None:
        super().__init__({**os.environ, "PYTHONPATH": str(ROOT)}, [fake_child.__name__])
        self.path = path
        self.behaviours = behaviours
        self.when_forked: dict[str, Callable[[], Awaitable[None]]] = {}
        """By module: what happens between the fork and its answer."""

    async def fork(self, module: str, title: str, environment: Mapping[str, str], descriptors: Sequence[int]) -> Forked:
        script = {"FAKE_BEHAVIOUR": self.behaviours[module], "FAKE_DIRECTORY": str(self.path)}
        child = await super().fork(fake_child.__name__, title, {**environment, **script}, descriptors)
        if module in self.when_forked:
            await self.when_forked[module]()
        return child


class Stage:
    """Everything that a service needs; `fake_child` plays its children."""

    def __init__(self, path: Path, runtime: Path) -> None:
        self.path = path
        self.data = DataDir.open(path / "data", 2, 0)
        self.runtime = RuntimeDir.open(runtime)
        self.listening = listen(*resolve("127.0.0.1", 0))
        self.notified = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.notified.bind(str(runtime / "notify"))
        self.notified.setblocking(False)
        self.notifier = Notifier(str(runtime / "notify"))
        self.announced: list[str] = []
        self.ready = trio.Event()
        self.pids: set[int] = set()

    def service(
        self,
        shard: str = "good",
        gateway: str = "good",
        roster: str = "members",
        keys: Keys | None = None,
        cluster: Address | None = None,
        filled: bool = True,
        **options: Any,
    ) -> Service:
        self.forks = Scripted(self.path, {SHARD: shard, GATEWAY: gateway, ROSTER: roster})
        for name in ("shard-00", "shard-01") if cluster is not None and filled else ():
            (self.data.path / name / "bucket.json").touch()
        return Service(
            settings.load({"gateways": 1, **options}),
            keys or Keys(),
            Opened(self.data, self.runtime, self.listening, cluster=cluster),
            self.forks,
            self.notifier,
            structlog.get_logger(),
            self.announce,
        )

    def announce(self, line: str) -> None:
        self.announced.append(line)
        self.ready.set()

    def status(self) -> dict[str, Any]:
        status: dict[str, Any] = json.loads((self.runtime.path / "children.json").read_text())
        return status

    def received(self, name: str) -> list[Any]:
        """Messages that a child received, each as [type, fields, pid, environment]. A kill may have cut one short, and
        the last one may be half there."""
        found = []
        for line in (self.path / f"{name}.log").read_text().splitlines():
            with suppress(json.JSONDecodeError):
                found.append(json.loads(line))
        return found

    def told_phases(self) -> list[list[str]]:
        """Phases of the shards in the order sent to the gateway."""
        told = [entry[1] for entry in self.received("gateway-0")]
        return [[state["phase"] for state in each["states"]] for each in told if each.get("states")]

    def notifications(self) -> str:
        lines = b""
        try:
            while True:
                lines += self.notified.recv(4096) + b"\n"
        except BlockingIOError:
            return lines.decode()

    def close(self) -> None:
        for part in (self.listening, self.notified, self.notifier, self.data):
            part.close()
        (self.runtime.path / "notify").unlink()
        self.runtime.close()

    def assert_nobody_left(self) -> None:
        pids = {entry[2] for log in self.path.glob("*.log") for entry in self.received(log.stem)}
        assert Watched(pids).wait_gone(0) == []


def signal_self(number: int) -> None:
    os.kill(os.getpid(), number)


async def run(service: Service, statuses: list[int]) -> None:
    statuses.append(await service.run())


async def eventually(condition: Any) -> None:
    with trio.fail_after(DEADLINE_S):
        while not condition():  # noqa: ASYNC110 - the condition is about another process
            await trio.sleep(0.01)


async def test_all_ready_is_announced_once_and_sigterm_ends_in_order(stage: Stage) -> None:
    statuses: list[int] = []
    with trio.fail_after(DEADLINE_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run, stage.service(), statuses)
            await stage.ready.wait()
            assert stage.status()["ready"] is True
            signal_self(signal.SIGHUP)
            signal_self(signal.SIGTERM)
    assert statuses == [0]
    assert len(stage.announced) == 1
    assert "http://127.0.0.1:" in stage.announced[0]

    def orders(child: str) -> list[str]:
        return [name for name, *_ in stage.received(child) if name not in ("Shards", "Askers", "Ping")]

    assert orders("gateway-0") == ["Start", "Drain", "Stop"]
    assert orders("shard-1") == ["Start", "Stop"]
    notifications = stage.notifications()
    assert notifications.index("READY=1") < notifications.index("STOPPING=1")
    # A reload ends with a readiness report too, unless the service ends before.
    assert notifications.count("READY=1") in (1, 1 + notifications.count("RELOADING=1"))
    stage.assert_nobody_left()


async def test_shards_hear_which_askers_are_gone(stage: Stage) -> None:
    def heard(shard: str) -> list[dict[str, int]]:
        return [entry[1]["first"] for entry in stage.received(shard) if entry[0] == "Askers"]

    statuses: list[int] = []
    with trio.fail_after(DEADLINE_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run, stage.service(shard="die-once:1", gateway="good"), statuses)
            await stage.ready.wait()
            gateway = stage.status()["children"]["gateway"]
            assert gateway["incarnation"] == 1
            os.kill(gateway["pid"], signal.SIGKILL)
            for shard in ("shard-0", "shard-1"):
                await eventually(lambda shard=shard: {"g0": 2, "s0": 1, "s1": 2} in heard(shard))
            await eventually(lambda: [entry[0] for entry in stage.received("gateway-0")].count("Start") == 2)
            signal_self(signal.SIGTERM)
    assert all(entry[0] != "Askers" for entry in stage.received("gateway-0"))
    starts = [entry[1] for entry in stage.received("shard-1") if entry[0] == "Start"]
    assert [(start["incarnation"], start["askers"]["s1"]) for start in starts] == [(1, 1), (2, 2)]
    assert [entry[1]["incarnation"] for entry in stage.received("gateway-0") if entry[0] == "Start"][:2] == [1, 2]
    for first in (*heard("shard-0"), *heard("shard-1")):
        assert first["s0"] == 1, "a process that lives is never reported as gone"


async def test_shards_hear_the_members_that_the_roster_reports_also_after_it_has_died(stage: Stage) -> None:
    def heard(shard: str) -> list[Any]:
        return [entry[1]["machines"] for entry in stage.received(shard) if entry[0] == "Members"]

    def starts(name: str) -> list[Any]:
        return [entry[1] for entry in stage.received(name) if entry[0] == "Start"]

    statuses: list[int] = []
    cluster = Address("127.0.0.1", 4100, "tcp://one")
    with trio.fail_after(DEADLINE_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run, stage.service(cluster=cluster), statuses)
            await stage.ready.wait()
            for shard in ("shard-0", "shard-1"):
                await eventually(lambda shard=shard: fake_child.MEMBERS in heard(shard))
            os.kill(stage.status()["children"]["roster"]["pid"], signal.SIGKILL)
            await eventually(lambda: len(starts("roster-0")) == 2)
            os.kill(stage.status()["children"]["shard-01"]["pid"], signal.SIGKILL)
            await eventually(lambda: len(starts("shard-1")) == 2)
            signal_self(signal.SIGTERM)
    assert statuses == [0]
    assert starts("shard-1")[1]["cluster"]["members"] == fake_child.MEMBERS
    assert [start["cluster"]["listen"] for start in starts("shard-1")] == ["127.0.0.1:4101"] * 2
    found = [start["cluster"] for name in ("gateway-0", "shard-0", "roster-0") for start in starts(name)]
    assert len({(each["machine"], each["public"], each["secret"]) for each in found}) == 1
    assert any(entry[0] == "Members" for entry in stage.received("gateway-0"))
    assert stage.received("roster-0")[-1][0] == "Stop"
    stage.assert_nobody_left()


async def test_a_gateway_hears_where_the_holder_of_a_shard_is(stage: Stage) -> None:
    def told() -> Any:
        states = [entry[1]["states"] for entry in stage.received("gateway-0") if entry[1].get("states")]
        return states and [(each["phase"], each["holder_at"], each["holder_key"]) for each in states[-1]]

    with trio.fail_after(DEADLINE_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run, stage.service(shard="follows:1"), [])
            await eventually((stage.path / "gateway-0.log").exists)
            await eventually(lambda: told() == [("ready", "", ""), ("standby", "tcp://b:1", "the key")])
            os.kill(stage.status()["children"]["shard-01"]["pid"], signal.SIGKILL)
            await eventually(lambda: stage.status()["children"]["shard-01"]["incarnation"] == 2)
            signal_self(signal.SIGTERM)
    starts = [entry[1]["states"] for entry in stage.received("shard-1") if entry[0] == "Start"]
    assert starts[1][1]["holder_key"] == "", "a new process has to look again"


async def test_a_roster_that_cannot_start_keeps_nothing_from_serving(stage: Stage) -> None:
    statuses: list[int] = []
    with trio.fail_after(DEADLINE_S):
        async with trio.open_nursery() as nursery:
            service = stage.service(roster="fail", cluster=Address("127.0.0.1", 4100, "tcp://one"))
            nursery.start_soon(run, service, statuses)
            await stage.ready.wait()
            await eventually(lambda: stage.status()["children"]["roster"]["state"] == "held")
            assert stage.status()["ready"] is True
            signal_self(signal.SIGTERM)
    assert statuses == [0]


CLUSTER = Address("127.0.0.1", 4100, "tcp://one", "id", "place")


async def test_shards_hear_what_the_roster_has_decided_and_the_gateways_which_one_goes(stage: Stage) -> None:
    def orders(shard: str) -> list[Any]:
        found = [entry[1] for entry in stage.received(shard) if entry[0] == "Orders"]
        return [(each["rank"], each["step"]) for each in found]

    def phases() -> list[list[str]]:
        return stage.told_phases()[-1:]

    with trio.fail_after(DEADLINE_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run, stage.service(roster="places", cluster=CLUSTER), [])
            await stage.ready.wait()
            await eventually(lambda: orders("shard-0")[-1:] == [(0, None)])
            await eventually(lambda: orders("shard-1")[-1:] == [(1, asdict(fake_child.STEP))])
            await eventually(lambda: phases() == [["ready", "stopping"]])
            stage.forks.behaviours[ROSTER] = "members"
            os.kill(stage.status()["children"]["roster"]["pid"], signal.SIGKILL)
            await eventually(lambda: orders("shard-1")[-1:] == [(1, None)])
            await eventually(lambda: phases() == [["ready", "ready"]])
            signal_self(signal.SIGTERM)
    start = stage.received("shard-1")[0][1]["cluster"]
    assert (start["member"], start["place"]) == ("id", "place")


async def test_with_other_machines_an_operators_takeover_is_of_each_shard(stage: Stage) -> None:
    statuses: list[int] = []
    with trio.fail_after(DEADLINE_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run, stage.service(cluster=CLUSTER), statuses)
            await stage.ready.wait()
            signal_self(signal.SIGUSR1)
            for name in ("shard-0", "shard-1"):
                await eventually(lambda name=name: "TakeOver" in [entry[0] for entry in stage.received(name)])
            signal_self(signal.SIGTERM)
    assert statuses == [0]


async def test_a_machine_that_is_asked_to_leave_ends_when_others_hold_its_shards(stage: Stage) -> None:
    def news() -> list[Any]:
        return [entry[1]["leaving"] for entry in stage.received("roster-0") if entry[0] == "Local"]

    statuses: list[int] = []
    with trio.fail_after(DEADLINE_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run, stage.service(shard="follows:1", cluster=CLUSTER), statuses)
            await eventually((stage.path / "roster-0.log").exists)
            await eventually(lambda: stage.status()["children"]["shard-00"]["phase"] == "ready")
            assert stage.status()["leaving"] is False
            signal_self(signal.SIGRTMIN)
            await eventually(lambda: news()[-1:] == [True])
            assert stage.status()["leaving"] is True
            assert not statuses, "a shard is still here"
            stage.forks.behaviours[SHARD] = "follows"
            os.kill(stage.status()["children"]["shard-00"]["pid"], signal.SIGKILL)
    assert statuses == [0]
    stage.assert_nobody_left()


async def test_a_machine_that_holds_no_shard_ends_when_it_is_asked_to_leave(stage: Stage) -> None:
    def phases() -> list[str]:
        return [child["phase"] for name, child in stage.status()["children"].items() if "shard" in name]

    statuses: list[int] = []
    with trio.fail_after(DEADLINE_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run, stage.service(shard="follows", cluster=CLUSTER), statuses)
            await eventually((stage.path / "roster-0.log").exists)
            await eventually(lambda: phases() == ["standby", "standby"])
            signal_self(signal.SIGRTMIN)
    assert statuses == [0]
    stage.assert_nobody_left()


async def test_a_machine_on_a_copy_of_a_directory_ends(stage: Stage) -> None:
    statuses: list[int] = []
    with trio.fail_after(DEADLINE_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run, stage.service(roster="refused", cluster=CLUSTER), statuses)
    assert statuses == [EXIT_BEYOND_HELP]
    stage.assert_nobody_left()


async def test_without_other_machines_there_is_no_roster_and_nobody_has_keys(stage: Stage) -> None:
    with trio.fail_after(DEADLINE_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run, stage.service(), [])
            await stage.ready.wait()
            assert "roster" not in stage.status()["children"]
            signal_self(signal.SIGTERM)
    for name in ("gateway-0", "shard-0"):
        assert stage.received(name)[0][1]["cluster"] is None
        assert all(entry[0] != "Members" for entry in stage.received(name))


async def test_children_are_told_what_they_need_and_nothing_else(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOPICS_MAX_LIMIT", "55")
    monkeypatch.setenv("SECRET_OF_THE_HOST", "x")
    monkeypatch.setenv("NOTIFY_SOCKET", "/x")
    statuses: list[int] = []
    with trio.fail_after(DEADLINE_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run, stage.service(), statuses)
            await stage.ready.wait()
            await eventually(lambda: stage.told_phases()[-1:] == [["ready", "ready"]])
            signal_self(signal.SIGINT)
    _, start, _, environment = stage.received("shard-1")[0]
    assert (start["role"], start["index"], start["shards"]) == ("shard", 1, 2)
    assert start["endpoint"] == f"ipc://{stage.runtime.path}/shard-01.1.sock"
    assert start["data_dir"] == str(stage.data.path)
    assert start["limits"]["max_limit"] == 55
    assert environment["PATH"] == os.environ["PATH"]
    assert {name for name in environment if name.startswith("TOPICS_")} == {
        "TOPICS_CONTROL_FD",
        "TOPICS_SUPERVISOR_PID",
        "TOPICS_LOG_LEVEL",
        "TOPICS_LOG_FORMAT",
    }
    assert not {"SECRET_OF_THE_HOST", "NOTIFY_SOCKET"} & set(environment)
    _, start, _, _ = stage.received("gateway-0")[0]
    assert start["role"] == "gateway"
    assert start["listen_fd"] >= 0
    last = [entry for entry in stage.received("gateway-0") if entry[1].get("states")][-1]
    assert [state["endpoint"] for state in last[1]["states"]] == [
        f"ipc://{stage.runtime.path}/shard-{index:02d}.1.sock" for index in (0, 1)
    ]


async def test_an_operators_takeover_is_told_to_shard_0_with_which_the_others_go(stage: Stage) -> None:
    def told(name: str) -> list[str]:
        return [entry[0] for entry in stage.received(name)]

    with trio.fail_after(DEADLINE_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run, stage.service(), [])
            await stage.ready.wait()
            signal_self(signal.SIGUSR1)
            await eventually(lambda: "TakeOver" in told("shard-0"))
            signal_self(signal.SIGINT)
    assert told("shard-1")[-1] == "Stop"
    assert "TakeOver" not in told("shard-1")


async def test_a_new_gateway_is_told_the_state_of_the_shards_at_once(stage: Stage) -> None:
    statuses: list[int] = []
    with trio.fail_after(DEADLINE_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run, stage.service(), statuses)
            await stage.ready.wait()
            os.kill(stage.status()["children"]["gateway"]["pid"], signal.SIGKILL)
            await eventually(lambda: stage.status()["children"]["gateway"]["incarnation"] == 2)
            await eventually(lambda: stage.status()["ready"])
            signal_self(signal.SIGTERM)
    starts = [entry[1] for entry in stage.received("gateway-0") if entry[0] == "Start"]
    assert [state["phase"] for state in starts[1]["states"]] == ["ready", "ready"]
    assert starts[0]["listen_fd"] == starts[1]["listen_fd"]


async def test_what_changes_while_a_gateway_is_forked_stands_in_its_first_message(stage: Stage) -> None:
    """Nothing can be told to it before."""
    path = stage.path / "keys"
    path.write_text("before")
    service = stage.service(keys=Keys(read_file(path), path))

    async def meanwhile() -> None:
        path.write_text("after")
        signal_self(signal.SIGHUP)
        reloaded = read_file(path)
        await eventually(lambda: service._reload.keys.keys == reloaded)
        await eventually(lambda: [state.phase for state in service.states()] == ["ready", "ready"])

    stage.forks.when_forked[GATEWAY] = meanwhile
    statuses: list[int] = []
    with trio.fail_after(DEADLINE_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run, service, statuses)
            await stage.ready.wait()
            signal_self(signal.SIGTERM)
    assert statuses == [0]
    _, start, _, _ = stage.received("gateway-0")[0]
    assert [state["phase"] for state in start["states"]] == ["ready", "ready"]
    assert [each["digest"] for each in start["keys"]] == [hashlib.sha256(b"after").hexdigest()]


async def test_progress_of_a_boot_reaches_the_service_manager(stage: Stage) -> None:
    statuses: list[int] = []
    with trio.fail_after(DEADLINE_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run, stage.service(shard="slow"), statuses)
            await stage.ready.wait()
            signal_self(signal.SIGTERM)
    told = stage.notifications()
    assert "STATUS=shard-00: replay 0 %\nEXTEND_TIMEOUT_USEC=" in told
    assert "STATUS=shard-00: derive 100 %" in told


async def test_a_child_that_says_it_failed_ends_the_service_with_its_message(
    stage: Stage, capsys: pytest.CaptureFixture[str]
) -> None:
    with trio.fail_after(DEADLINE_S):
        assert await stage.service(shard="fail").run() == 3
    assert "wal-7.log is damaged at byte 99" in capsys.readouterr().out
    assert "wal-7.log is damaged at byte 99" in stage.notifications()
    starts = [entry for entry in stage.received("shard-0") + stage.received("shard-1") if entry[0] == "Start"]
    assert len(starts) <= 2, "no second try"
    stage.assert_nobody_left()


async def test_a_child_that_keeps_dying_ends_the_service(stage: Stage, capsys: pytest.CaptureFixture[str]) -> None:
    with trio.fail_after(DEADLINE_S):
        assert await stage.service(shard="die", restart_limit=2).run() == 1
    assert "died 3 times within 60 s, the last time with exit status 9" in capsys.readouterr().out
    stage.assert_nobody_left()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("behaviour", "says"), [("fail:1", "wal-7.log is damaged at byte 99"), ("die:1", "died 3 times within 60 s")]
)
async def test_a_shard_that_cannot_start_is_held_and_the_others_serve(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], behaviour: str, says: str
) -> None:
    monkeypatch.setattr("supervisor.process.restart.FIRST_HOLD_S", 0.5)
    statuses: list[int] = []
    with trio.fail_after(DEADLINE_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run, stage.service(shard=behaviour, restart_limit=2), statuses)
            await stage.ready.wait()
            assert "without shard-01" in stage.announced[0], "a start does not wait for it"
            await eventually(lambda: stage.status()["children"]["shard-01"]["state"] == "held")
            assert stage.status()["children"]["shard-00"]["state"] == "serving"
            await eventually(lambda: "failed" in [phases[1] for phases in stage.told_phases() if phases])
            tries = stage.status()["children"]["shard-01"]["incarnation"]
            await eventually(lambda: stage.status()["children"]["shard-01"]["incarnation"] > tries + 1)
            (stage.path / "mended").touch()
            await eventually(lambda: stage.status()["ready"])
            assert stage.status()["children"]["shard-00"]["incarnation"] == 1
            signal_self(signal.SIGTERM)
    assert statuses == [0]
    assert says in capsys.readouterr().out
    assert (
        f"READY=1\nSTATUS=serving {stage.announced[0].split()[4].rstrip(',')}, without shard-01"
        in stage.notifications()
    )
    stage.assert_nobody_left()


async def test_a_shard_that_has_served_ends_nothing_when_it_cannot_start_again(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This holds even if no other shard serves, because the cause may be repaired while the service waits."""
    monkeypatch.setattr("supervisor.process.restart.FIRST_HOLD_S", 0.2)
    (stage.path / "mended").touch()
    statuses: list[int] = []
    with trio.fail_after(DEADLINE_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run, stage.service(shard="fail:1", gateway="good"), statuses)
            await stage.ready.wait()
            (stage.path / "mended").unlink()
            os.kill(stage.status()["children"]["shard-01"]["pid"], signal.SIGKILL)
            await eventually(lambda: stage.status()["children"]["shard-01"]["state"] == "held")
            (stage.path / "mended").touch()
            await eventually(lambda: stage.status()["ready"])
            signal_self(signal.SIGTERM)
    assert statuses == [0]


async def test_a_second_interrupt_forces_the_end(stage: Stage) -> None:
    statuses: list[int] = []
    with trio.fail_after(DEADLINE_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run, stage.service(shard="stubborn", stop_timeout_ms=600_000), statuses)
            await stage.ready.wait()
            signal_self(signal.SIGINT)
            await eventually(lambda: stage.status()["children"]["shard-00"]["state"] == "stopping")
            signal_self(signal.SIGINT)
    assert statuses == [130]
    stage.assert_nobody_left()


async def test_it_can_be_stopped_before_it_is_ready(stage: Stage) -> None:
    statuses: list[int] = []
    with trio.fail_after(DEADLINE_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run, stage.service(shard="silent", gateway="silent"), statuses)
            await eventually((stage.path / "shard-0.log").exists)
            signal_self(signal.SIGTERM)
    assert statuses == [0]
    assert not stage.announced
    stage.assert_nobody_left()


async def test_cancelling_the_service_leaves_no_process(stage: Stage) -> None:
    with trio.fail_after(DEADLINE_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stage.service().run)
            await stage.ready.wait()
            nursery.cancel_scope.cancel()
    stage.assert_nobody_left()
