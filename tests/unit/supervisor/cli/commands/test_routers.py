"""`topics routers`: what is asked of the service."""

from __future__ import annotations

import pytest

from tests.support.fake_client import Commands, FakeClient


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> Commands:
    return Commands(monkeypatch)


@pytest.mark.parametrize(
    ("options", "config"),
    [
        ([], {}),
        (["--tag", "x"], {"filter": "x"}),
        (["--tag", "x:*"], {"filter": ["tag", "Glob", "x:*"]}),
        (["--exactly-once", "--allow-cycle"], {"guarantee": "exactly_once", "allow_cycle": True}),
    ],
)
def test_a_router_has_the_options_that_are_given(
    commands: Commands, options: list[str], config: dict[str, object]
) -> None:
    client = FakeClient(set_router={"router": "r", "created": True, "performance": {}})
    (row,) = commands.lines(client, "routers", "add", "r", "a", "b", *options)
    assert client.calls == [("set_router", "r", {"source": "a", "dest": "b", **config})]
    assert row == {"router": "r", "created": True}


@pytest.mark.parametrize(("created", "said"), [(True, "r: a to b, made"), (False, "r: a to b, there already")])
def test_a_router_that_was_there_is_said_to_be(commands: Commands, created: bool, said: str) -> None:
    done = commands.run(FakeClient(set_router={"created": created}), "routers", "add", "r", "a", "b")
    assert done.stdout.strip() == said


@pytest.mark.parametrize(("gone", "said"), [(True, "r: deleted"), (False, "r: is not there")])
def test_deleting_one_that_is_not_there_is_no_failure(commands: Commands, gone: bool, said: str) -> None:
    done = commands.run(FakeClient(delete_router=gone), "routers", "rm", "r")
    assert (done.exit_code, done.stdout.strip()) == (0, said)


def test_a_router_is_shown_with_all_its_fields(commands: Commands) -> None:
    state = {"router": "r", "filter": ["tag", "Glob", "x*"], "forwarded_total": 3, "performance": {"a": 1}}
    done = commands.run(FakeClient(router=state), "routers", "show", "r")
    assert [line.split(maxsplit=1) for line in done.stdout.splitlines()] == [
        ["router:", "r"],
        ["filter:", '["tag","Glob","x*"]'],
        ["forwarded_total:", "3"],
    ]


def test_a_list_may_be_of_one_source_or_destination(commands: Commands) -> None:
    client = FakeClient(routers=[{"router": "r"}])
    assert list(commands.lines(client, "routers", "ls", "pre", "--from", "a", "--to", "b")) == [{"router": "r"}]
    assert client.calls == [("routers", "pre", {"source": "a", "dest": "b"})]
