"""Claims about real frames: each is as the AsyncAPI document of the service says, no more and no less."""

from __future__ import annotations

import json
from typing import Any

import httpx
from httpx_sse import connect_sse
from jsonschema import Draft202012Validator
from websockets.sync.client import connect

from tests.e2e.test_openapi import strict
from tests.support.events import write
from tests.support.service import Service

NOT_MADE_HERE = {("watch", "error"), ("work", "error")}
"""Errors of event streams, which need a fault."""


class Checker:
    """Checks messages against the document, and notes which it has seen."""

    def __init__(self, service: Service) -> None:
        self.whole: Any = service.request("GET", "/v0/asyncapi.json")[1]
        self._schemas = strict(self.whole["components"]["schemas"])
        self.seen: set[tuple[str, str]] = set()

    def check(self, channel: str, name: str, payload: Any) -> None:
        schema = self.whole["channels"][channel]["messages"][name]["payload"]
        Draft202012Validator({**schema, "components": {"schemas": self._schemas}}).validate(payload)
        self.seen.add((channel, name))


def said(service: Service, checker: Checker, commands: list[Any], wanted: set[str]) -> None:
    """Send commands over a WebSocket, and check what comes, until each wanted message has come, in any order."""
    with connect(f"ws://127.0.0.1:{service.port}/v0/ws") as socket:
        for command in commands:
            checker.check("websocket", command["op"], command)
            socket.send(json.dumps(command))
        while wanted:
            told = json.loads(socket.recv(20))
            checker.check("websocket", told["op"], told)
            wanted = wanted - {told["op"]}


def streamed(service: Service, checker: Checker, channel: str, path: str, last: str) -> None:
    """Check the events of a stream, up to one."""
    with httpx.Client(base_url=service.url, timeout=20) as client, connect_sse(client, "GET", path) as source:
        for event in filter(lambda event: event.data, source.iter_sse()):
            checker.check(channel, event.event, json.loads(event.data))
            if event.event == last:
                return


def test_every_frame_is_as_documented(shared: Service) -> None:
    checker = Checker(shared)
    assert shared.request("PUT", "/v0/topics/log", {"cap_records": 1})[0] == 201
    record = {"data": 1, "tag": "t", "node": "n", "meta": {"m": 1}}
    for _ in range(2):
        assert shared.request("POST", "/v0/topics/log", {"records": [record]})[0] == 200
    write(shared, "gone", 1)
    watched = shared.request("POST", "/v0/watch", {"topics": {"log": {}, "gone": None}, "include_tags": True})
    path = watched[1]["stream_url"]
    streamed(shared, checker, "watch", path, "caught-up")
    shared.request("DELETE", "/v0/topics/gone")
    streamed(shared, checker, "watch", path, "topic-deleted")
    bare = shared.request("POST", "/v0/watch", {"topics": {"log": {}}, "include_data": False})
    streamed(shared, checker, "watch", bare[1]["stream_url"], "caught-up")
    assert shared.request("PUT", "/v0/topics/jobs", {"type": "queue"})[0] == 201
    shared.request("POST", "/v0/topics/jobs", {"records": [record, {"data": 1}]})
    streamed(shared, checker, "work", "/v0/topics/jobs/work?node=w&max=2", "job")
    said(
        shared,
        checker,
        [
            {"op": "auth", "token": "t"},
            {"op": "publish", "request_id": {"n": 1}, "topic": "sock", "records": [record]},
            {"op": "publish", "topic": "none", "records": [record], "create": False},
            {"op": "subscribe", "request_id": "s", "topic": "log", "from_seq": 0, "include_tags": True},
            {"op": "subscribe", "topics": {"sock": {"tail": True}}},
            {"op": "unsubscribe", "request_id": 1, "topics": ["sock"]},
            {"op": "ping", "request_id": None},
        ],
        {"caught_up", "unsubscribed", "pong"},
    )
    said(shared, checker, [{"op": "subscribe", "topic": "log", "include_data": False}], {"record", "caught_up"})
    shared.request("DELETE", "/v0/topics/sock")
    with connect(f"ws://127.0.0.1:{shared.port}/v0/ws") as socket:
        write(shared, "sock", 1)
        socket.send(json.dumps({"op": "subscribe", "topic": "sock"}))
        told = {}
        while told.get("op") != "caught_up":
            told = json.loads(socket.recv(20))
            checker.check("websocket", told["op"], told)
        shared.request("DELETE", "/v0/topics/sock")
        told = json.loads(socket.recv(20))
        checker.check("websocket", told["op"], told)
        socket.send('{"op":"ping"}')
        told = json.loads(socket.recv(20))
        checker.check("websocket", told["op"], told)
    every = {(name, each) for name, channel in checker.whole["channels"].items() for each in channel["messages"]}
    assert every - checker.seen == NOT_MADE_HERE
