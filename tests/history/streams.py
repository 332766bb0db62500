"""Streams of a recording: a watch over an event stream, and subscriptions of a WebSocket.

Both record an `open` for each connection, with the positions that the client has, and each frame. The history of a
client over all its connections is then one piece of each log, which the checker requires.
"""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Callable
from typing import Any

from websockets.exceptions import WebSocketException
from websockets.sync.client import ClientConnection, connect

from tests.history.recording import TIMEOUT_S, Client, pairs
from topics_history import format as f

SILENCE_S = 1.0
"""A WebSocket without frames for so long is asked whether it is to end."""
CLOSE_S = 0.5


class Followed:
    """A stream of a client over several topics. `positions` has the last seq that the client got, by topic."""

    def __init__(self, client: Client, topics: list[str], consistency: str) -> None:
        self.client = client
        self.consistency = consistency
        self.limit = 256
        """Records of a frame, at most."""
        self.positions = dict.fromkeys(topics, 0)
        self.opened = 0
        """Connections so far."""
        self.caught_up = 0
        """Frames that said so."""

    def follow(self, until: Callable[[], bool]) -> None:
        """Open a connection, and record its frames until it breaks or `until` says so."""
        raise NotImplementedError

    def _asked(self) -> dict[str, Any]:
        """The fields of a watch, or of a subscription, after the positions of the client."""
        topics = {topic: {"from_seq": seq} for topic, seq in self.positions.items()}
        return {"topics": topics, "consistency": self.consistency, "limit": self.limit}

    def _open(self, start_ns: int) -> None:
        client = self.client
        opened = f.OpenArgs(client.name, dict(self.positions))
        client.recording.write(f.Open, client.name, start_ns, "ok", args=opened)
        self.opened += 1

    def _take(self, kind: str, data: Any, start_ns: int) -> bool:
        """Record a frame of the connection that was opened at `start_ns`. False for an event that is none."""
        if kind == "record":
            result = f.FrameResult("records", data["to_seq"], pairs(data["records"]))
        elif kind == "tombstone":
            result = f.FrameResult("gap", data["gap_to"], gap_from=data["gap_from"])
        elif kind in ("caught-up", "caught_up"):
            result = f.FrameResult("caught_up", data["head_seq"])
            self.caught_up += 1
        else:
            return False
        client, topic = self.client, data["topic"]
        args = f.FrameArgs(client.name)
        client.recording.write(f.Frame, client.name, start_ns, "ok", topic=topic, args=args, result=result)
        self.positions[topic] = max(self.positions[topic], result.to_seq)
        return True


class Stream(Followed):
    """A watch session. It resumes with the id of the last frame, whose positions it kept."""

    def __init__(self, client: Client, topics: list[str], consistency: str) -> None:
        super().__init__(client, topics, consistency)
        self._kept: dict[str, int] = {}
        """The positions at the last frame that had an id."""
        self._wid = self._id = ""

    def follow(self, until: Callable[[], bool]) -> None:
        client = self.client
        if not self._id:  # without an id, a session may be ahead of its client: begin another one
            made = client.ask("POST", "/v0/watch", {**self._asked(), "heartbeat_ms": 1000})
            if made.outcome != "ok":
                return
            self._wid, self._kept = made.body["wid"], dict(self.positions)
        self.positions = dict(self._kept)
        connection = client.connect()
        start_ns = time.monotonic_ns()
        try:
            connection.request("GET", f"/v0/watch/{self._wid}", headers={"Last-Event-ID": self._id} if self._id else {})
            response = connection.getresponse()
            if response.status != 200:
                if response.status == 404:
                    self._id = ""
                return
            self._open(start_ns)
            fields: dict[str, str] = {}
            while not until():
                line = response.readline()
                if not line:
                    return
                name, _, value = line.decode().rstrip("\n").partition(": ")
                if name:
                    fields[name] = value
                elif fields:
                    self._event(fields, start_ns)
                    fields = {}
        except (OSError, http.client.HTTPException):
            return
        finally:
            connection.close()

    def _event(self, fields: dict[str, str], start_ns: int) -> None:
        taken = self._take(fields.get("event", ""), json.loads(fields.get("data") or "null"), start_ns)
        if taken and fields.get("id"):
            self._id, self._kept = fields["id"], dict(self.positions)


class Socket(Followed):
    """Subscriptions of a WebSocket. It has no session: each connection subscribes after the positions of the client."""

    def follow(self, until: Callable[[], bool]) -> None:
        host, port = self.client.address()
        url = f"ws://{host}:{port}/v0/ws"
        start_ns = time.monotonic_ns()
        try:
            with connect(url, proxy=None, open_timeout=TIMEOUT_S, close_timeout=CLOSE_S, max_size=None) as connection:
                connection.send(json.dumps({"op": "subscribe", **self._asked()}))
                answer = json.loads(connection.recv(timeout=TIMEOUT_S))
                if answer["op"] != "subscribed":
                    return
                self._open(start_ns)
                while not until():
                    frame = _next(connection)
                    if frame is not None:
                        self._take(frame["op"], frame, start_ns)
        except (OSError, EOFError, WebSocketException):
            return


def _next(connection: ClientConnection) -> Any:
    """The next frame; None after a silence."""
    try:
        return json.loads(connection.recv(timeout=SILENCE_S))
    except TimeoutError:
        return None
