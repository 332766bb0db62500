"""Claims about the audit log: who changed what, who was refused, and that neither a key nor a flood gets into it."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import structlog
from wsproto.events import TextMessage

from gateway.observe.audit import MOST, MOST_NAME, MOST_NAMES, WINDOW_S, Audit
from proto.model.keys import Scope
from supervisor.process.audit_file import AuditFile
from tests.support.gateway_stage import Stage, key, stage
from tests.support.harness import Harness
from tests.support.real_shard import start_real
from tests.unit.gateway.http.test_websocket import connected
from tests.unit.gateway.server.test_hypercorn_bridge import Http2

KEYS = [key("full"), key("reads", Scope.READ), key("inside", Scope.READ | Scope.WRITE, "a:")]


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def begin(there: Stage, path: Path, clock: Clock | None = None, gateways: int = 1) -> Clock:
    clock = clock or Clock()
    there.gateway.api.outcomes.audit = Audit(
        os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), monotonic=clock, gateways=gateways
    )
    return clock


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def bearer(secret: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {secret}"}


async def test_changes_and_refusals_have_a_line_and_nothing_else_has(tmp_path: Path) -> None:
    path = tmp_path / "audit"
    async with stage(keys=KEYS) as there, there.client() as client:
        begin(there, path)
        for method, target, body, secret in (
            ("PUT", "/v0/topics/a", b"{}", "full"),
            ("DELETE", "/v0/topics/a", None, "full"),
            ("GET", "/v0/topics/a", None, "reads"),
            ("POST", "/v0/topics/a", b"{}", "full"),
            ("GET", "/v0/health", None, "full"),
            ("DELETE", "/v0/topics/a?if_empty=true", None, "reads"),
            ("POST", "/v0/topics/b", b"{}", "inside"),
            ("GET", "/v0/topics/a?touch=false", None, "s3cret"),
        ):
            await client.ask(method, target, body, bearer(secret))
        async with there.client() as other:
            await Http2(other.stream).ask("DELETE", "/v0/topics/c", headers=[("authorization", "Bearer full")])
    async with stage() as there, there.client() as client:
        begin(there, path)
        await client.ask("PUT", "/v0/topics/a", b"{}")
        await client.ask("GET", "/v0/topics/a", headers={"Origin": "https://evil.example"})
    found = [(e["event"], e["key"], e["operation"], e["names"], e["status"]) for e in lines(path)]
    full, reads, inside = (hashlib.sha256(each).hexdigest()[:8] for each in (b"full", b"reads", b"inside"))
    assert found == [
        ("change", full, "configure_topic", ["a"], 200),
        ("change", full, "delete_topic", ["a"], 200),
        ("refused", reads, "delete_topic", ["a"], 403),
        ("refused", inside, "append", ["b"], 403),
        ("refused", None, "topic_state", ["a"], 401),
        ("change", full, "delete_topic", ["c"], 200),
        ("change", None, "configure_topic", ["a"], 200),
        ("refused", None, None, [], 403),
    ]
    assert {each["peer"] for each in lines(path)} == {"127.0.0.1"}
    text = path.read_text()
    assert not any(secret in text for secret in ("s3cret", "Bearer", "touch", "if_empty", "evil"))
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(("gateways", "most"), [(1, MOST), (3, 20), (16, 4)])
async def test_a_flood_of_refusals_is_counted_and_hides_no_change(tmp_path: Path, gateways: int, most: int) -> None:
    path = tmp_path / "audit"
    async with stage(keys=KEYS) as there, there.client() as client:
        clock = begin(there, path, gateways=gateways)
        for _ in range(most + 7):
            await client.ask("GET", "/v0/topics/" + 200 * "x", headers=bearer("wrong"))
        await client.ask("PUT", "/v0/topics/a", b"{}", bearer("full"))
        assert [each["event"] for each in lines(path)] == [*["refused"] * most, "change"]
        clock.now = WINDOW_S
        assert there.gateway.api.outcomes.audit is not None
        there.gateway.api.outcomes.audit.flush()
        assert lines(path)[-1]["event"] == "suppressed"
        assert lines(path)[-1]["refused"] == 7
        await client.ask("GET", "/v0/topics/a", headers=bearer("wrong"))
        assert lines(path)[-1]["event"] == "refused"


async def test_a_name_forges_no_line_and_makes_none_long(tmp_path: Path) -> None:
    path = tmp_path / "audit"
    async with stage(keys=KEYS) as there, there.client() as client:
        begin(there, path)
        bad = "%0A%1B%5B2J%E2%80%A8%7F" + 5000 * "x"
        await client.ask("DELETE", f"/v0/topics/{bad}", headers=bearer("wrong"))
    assert len(lines(path)) == 1
    assert len(lines(path)[0]["names"][0]) <= MOST_NAME
    assert path.read_text().removesuffix("\n").isprintable()


async def test_a_full_disk_stops_no_request() -> None:
    async with stage(keys=KEYS) as there, there.client() as client:
        there.gateway.api.outcomes.audit = Audit(os.open("/dev/full", os.O_WRONLY))
        with structlog.testing.capture_logs() as logged:
            assert (await client.ask("PUT", "/v0/topics/a", b"{}", bearer("full"))).status == 200
    assert ("audit_not_written", "No space left on device") in [(e["event"], e.get("error")) for e in logged]


async def test_commands_of_a_socket_have_lines_as_requests_have(tmp_path: Path) -> None:
    path = tmp_path / "audit"
    async with stage(keys=KEYS) as there:
        await start_real(there, Harness())
        begin(there, path)
        async with connected(there, Authorization="Bearer full") as socket:
            await socket.command("publish", topic="a", records=[{"data": 1}])
            assert (await socket.answer())["op"] == "ack"
            for config in ({}, {"config": None}, {"config": {"cap_records": 7}}):
                await socket.command("publish", topic="a", records=[{"data": "s3cret"}], **config)
                assert (await socket.answer())["op"] == "ack"
            await socket.command("publish", topic="none", records=[{"data": 1}], create=False, config={})
            assert (await socket.answer())["code"] == "topic_not_found"
        async with connected(there) as socket:
            await socket.command("auth", token="inside")
            assert (await socket.answer())["op"] == "authenticated"
            for topic, more in (("b", {}), ("a:b", {"config": {}}), ("a:b", {})):
                await socket.command("publish", topic=topic, records=[{"data": 1}], **more)
                await socket.answer()
            await socket.command("subscribe", topics={"b": None})
            assert (await socket.answer())["code"] == "forbidden"
            await socket.command("subscribe", prefix="c")
            assert (await socket.answer())["code"] == "forbidden"
            await socket.command("subscribe", topics={f"many{number}": None for number in range(100)})
            assert (await socket.answer())["code"] == "forbidden"
            await socket.command("ping")
            assert (await socket.answer())["op"] == "pong"
            await socket.say(TextMessage("no command"))
            assert (await socket.answer())["code"] == "invalid_request"
    found = [(e["event"], e["key"], e["operation"], e["names"], e["status"]) for e in lines(path)]
    full, inside = (hashlib.sha256(each).hexdigest()[:8] for each in (b"full", b"inside"))
    assert found == [
        ("change", full, "append", ["a"], 201),
        ("change", full, "append", ["a"], 200),
        ("change", full, "append", ["none"], 404),
        ("refused", inside, "append", ["b"], 403),
        ("refused", inside, "append", ["a:b"], 403),
        ("change", inside, "append", ["a:b"], 201),
        ("refused", inside, "websocket", ["b"], 403),
        ("refused", inside, "websocket", ["c"], 403),
        ("refused", inside, "websocket", [f"many{number}" for number in range(MOST_NAMES)], 403),
    ]
    assert not any(secret in path.read_text() for secret in ("s3cret", "cap_records", "Bearer"))


def test_a_new_gateway_takes_the_file_that_was_opened_while_it_was_started(tmp_path: Path) -> None:
    """What it inherited is the file from before."""
    before, after = AuditFile(tmp_path / "audit"), tmp_path / "audit"
    inherited, further = os.dup(before.descriptor), os.dup(before.theirs[0].fileno())
    after.rename(tmp_path / "audit.1")
    before.reopen()
    request: Any = SimpleNamespace(key=None, peer=lambda: "192.0.2.7")
    audit = Audit(inherited, further)
    audit.answered(None, ["a"], request, 401)
    before.close()
    os.close(inherited)
    assert audit._further is not None
    audit._further.close()
    assert [line["status"] for line in lines(after)] == [401]
    assert not (tmp_path / "audit.1").read_bytes()


def test_each_of_several_gateways_gets_the_file_that_was_opened_again(tmp_path: Path) -> None:
    file, path = AuditFile(tmp_path / "audit", 3), tmp_path / "audit"
    audits = [Audit(os.dup(file.descriptor), os.dup(theirs.fileno())) for theirs in file.theirs]
    path.rename(tmp_path / "audit.1")
    for _ in range(3):
        file.reopen()  # one that does not take it in time gets the last one
    request: Any = SimpleNamespace(key=None, peer=lambda: "192.0.2.7")
    for status, audit in zip((401, 403, 401), audits, strict=True):
        audit.reopened()
        audit.answered(None, ["a"], request, status)
    file.close()
    for audit in audits:
        os.close(audit._descriptor)
        assert audit._further is not None
        audit._further.close()
    assert [line["status"] for line in lines(path)] == [401, 403, 401]
    assert not (tmp_path / "audit.1").read_bytes()
