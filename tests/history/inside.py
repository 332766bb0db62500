"""The client of a recording that asks a shard of this process, and the notes that it keeps.

No gateway is between them: a path of the API is one operation of the shard. Time is the shard's clock, and one
nanosecond more for each line, so that the order of lines is the order of time.
"""

from __future__ import annotations

from typing import Any

import msgspec

from proto.model.errors import ErrorCode, TopicsError
from tests.history.recording import Answer, Requests
from tests.support.harness import FakeClock, Harness
from topics_history import format as f

OPERATIONS = {
    "POST ": "append",
    "PUT ": "configure",
    "GET ": "state",
    "POST diff": "diff",
    "POST delete": "delete_records",
    "POST peek": "peek_jobs",
    "POST claim": "claim",
    "POST ack": "ack",
    "POST nack": "nack",
    "POST extend": "extend",
    "PUT cursors": "cursor_put",
    "GET cursors": "cursor_get",
}
NS_OF_MS = 1_000_000


class Notes:
    """The lines of a history, in memory."""

    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock
        self.lines: list[Any] = []
        self.frames: list[int] = []
        """For each line the last frame of the log when it was written."""
        self.frame_no = 0
        self.last_ns = 0

    def now_ns(self) -> int:
        self.last_ns = max(self.last_ns + 1, self.clock.ms * NS_OF_MS)
        return self.last_ns

    def write(
        self, kind: type[f.Operation], client: str, start_ns: int, outcome: f.Outcome, waited_ns: int = 0, **more: Any
    ) -> int:
        end_ns = self.now_ns()
        self.lines.append(kind(client=client, start_ns=start_ns, end_ns=end_ns, outcome=outcome, **more))
        self.frames.append(self.frame_no)
        return end_ns


class Inside(Requests):
    """Requests to a shard in this process. `shard` may be exchanged for the next one on the same files."""

    longest_body = 200

    def __init__(self, shard: Harness, notes: Notes, name: str, seed: int) -> None:
        super().__init__(notes, name, seed)
        self.shard = shard
        self.error: TopicsError | None = None
        """The refusal of the last request."""

    def ask(self, method: str, path: str, body: Any = None) -> Answer:
        _, _, _, topic, *rest = path.split("/")
        options = {"cursor": rest[1]} if len(rest) > 1 else {}
        request = msgspec.json.encode(body) if body is not None else b""
        reply = self.shard.reply(OPERATIONS[f"{method} {rest[0] if rest else ''}"], topic, request, **options)
        self.error = error = reply.error
        self.recording.frame_no = self.shard.shard.log.next_no - 1
        if error is None:
            return Answer("ok", 200, msgspec.json.decode(reply.body) if reply.body else None)
        if error.code is ErrorCode.CURSOR_NOT_FOUND:
            return Answer("ok", error.status, {"seq": 0})
        unknown = (error.detail or {}).get("outcome") == "unknown"
        return Answer("unknown" if unknown else "failed", error.status, None)

    def configure(self, topic: str, config: dict[str, object]) -> None:
        """Create a topic; a history does not have it."""
        assert self.ask("PUT", f"/v0/topics/{topic}", config).outcome == "ok", self.error
