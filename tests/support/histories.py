"""Histories that tests make: one operation after the other by hand, or whole ones of a service that keeps its promises.

A `Story` is written by hand. `play` simulates clients that are concurrent: each operation takes effect at one moment
between its start and its end. `Kept` is the service that it talks to, a model of one process without faults.
"""

from __future__ import annotations

import heapq
import io
import random
from typing import Any

from topics_history import format as f
from topics_history.checker import Report, check_reader

STEP_NS = 1_000_000


class Story:
    """Operations in the order of their ends. Unless `at` says otherwise, each begins when the one before has ended."""

    def __init__(self, routers: tuple[f.Router, ...] = (), **topics: f.Topic) -> None:
        self.topics = topics or {"t": f.Topic()}
        self.routers = list(routers)
        self.operations: list[Any] = []
        self.now_ns = 0

    def add(self, kind: type[f.Operation], at: tuple[int, int] | None, result: Any, outcome: str, **more: Any) -> None:
        """`at` is in steps of a millisecond."""
        start, end = at or (self.now_ns // STEP_NS + 1, self.now_ns // STEP_NS + 2)
        self.now_ns = max(self.now_ns, end * STEP_NS)
        outcome = outcome or ("ok" if result is not None or kind in f.WITHOUT_RESULT else "unknown")
        times = {"start_ns": start * STEP_NS, "end_ns": end * STEP_NS}
        if kind not in f.WITHOUT_RESULT:
            more["result"] = result
        self.operations.append(kind(client="c", outcome=outcome, **times, **more))  # type: ignore[arg-type]

    def append(
        self,
        bodies: str,
        first: int = 0,
        *,
        topic: str = "t",
        head: int = 0,
        tags: list[str | None] | None = None,
        key: str | None = None,
        at: tuple[int, int] | None = None,
        outcome: str = "",
    ) -> None:
        """One record for each word of `bodies`. Without `first` the outcome is unknown."""
        words = bodies.split()
        last = first + len(words) - 1
        result = f.Appended(first, last, head or last) if first else None
        self.add(f.Append, at, result, outcome, topic=topic, args=f.AppendArgs(words, tags, key))

    def read(
        self,
        records: str = "",
        *,
        topic: str = "t",
        after: int = 0,
        to: int | None = None,
        head: int | None = None,
        floor: int | None = None,
        gap: tuple[int, int] | None = None,
        caught_up: bool = False,
        at: tuple[int, int] | None = None,
    ) -> None:
        """`records` is `1:a 2:b`. The read covers the seqs after `after` up to `to`, by default its last record."""
        found = pairs(records)
        covered = to if to is not None else found[-1][0] if found else after
        result = f.ReadResult(found, covered, head, floor, caught_up, gap)
        self.add(f.Read, at, result, "", topic=topic, args=f.ReadArgs(after))

    def state(self, head: int, floor: int = 1, *, at: tuple[int, int] | None = None) -> None:
        self.add(f.GetState, at, f.Bounds(head, floor), "", topic="t")

    def delete(
        self,
        before: int | None = None,
        tag: str | None = None,
        *,
        topic: str = "t",
        head: int = 0,
        floor: int = 1,
        at: tuple[int, int] | None = None,
        outcome: str = "",
    ) -> None:
        """Without `head` the outcome is unknown."""
        result = f.Bounds(head, floor) if head else None
        self.add(f.Delete, at, result, outcome, topic=topic, args=f.DeleteArgs(before, tag))

    def open(self, **positions: int) -> None:
        self.add(f.Open, None, None, "", args=f.OpenArgs("s", positions))

    def frame(
        self, kind: Any, to: int, records: str = "", *, gap_from: int = 0, at: tuple[int, int] | None = None
    ) -> None:
        result = f.FrameResult(kind, to, pairs(records), gap_from)
        self.add(f.Frame, at, result, "", topic="t", args=f.FrameArgs("s"))

    def claim(self, jobs: str, *, lease_ms: int = 1000, node: str = "w", at: tuple[int, int] | None = None) -> None:
        """`jobs` is `1:a:lease 2:b:lease`."""
        found = [(int(seq), body, lease) for seq, body, lease in (word.split(":") for word in jobs.split())]
        self.add(f.Claim, at, f.ClaimResult(found), "", topic="t", args=f.ClaimArgs(node, lease_ms))

    def use(
        self,
        kind: type[f.Operation],
        leases: str,
        *,
        skipped: tuple[int, ...] = (),
        lease_ms: int = 0,
        at: tuple[int, int] | None = None,
        outcome: str = "ok",
    ) -> None:
        """`leases` is `1:lease 2:lease`."""
        words = [word.split(":") for word in leases.split()]
        args = f.LeaseArgs([int(seq) for seq, _ in words], [lease for _, lease in words], lease_ms)
        result = f.LeaseResult(list(skipped)) if outcome == "ok" else None
        self.add(kind, at, result, outcome, topic="t", args=args)

    def put_cursor(self, seq: int, now: int | None = None, *, at: tuple[int, int] | None = None) -> None:
        """The answer has `now`; without it, the outcome is unknown."""
        result = f.CursorResult(now) if now is not None else None
        self.add(f.CursorPut, at, result, "", topic="t", args=f.CursorPutArgs("c", seq))

    def get_cursor(self, seq: int, *, at: tuple[int, int] | None = None) -> None:
        self.add(f.CursorGet, at, f.CursorResult(seq), "", topic="t", args=f.CursorGetArgs("c"))

    def fault(self, *, at: tuple[int, int] | None = None) -> None:
        self.add(f.Fault, at, None, "", args=f.FaultArgs("kill", "shard-00"))

    def settled(self) -> None:
        self.add(f.Settled, None, None, "")

    def written(self) -> bytes:
        return written(self.topics, self.routers, self.operations)

    def check(self) -> Report:
        return check_reader(f.Reader(io.BytesIO(self.written())))

    def kinds(self) -> list[str]:
        """The kinds of all violations, once each."""
        return sorted(self.check().counts)


def pairs(records: str) -> list[tuple[int, str]]:
    return [(int(seq), body) for seq, body in (word.split(":") for word in records.split())]


def written(topics: dict[str, f.Topic], routers: list[f.Router], operations: list[Any]) -> bytes:
    file = io.BytesIO()
    writer = f.Writer(file, topics, routers)
    for operation in sorted(operations, key=lambda each: each.end_ns):
        writer.write(operation)
    writer.close()
    return file.getvalue()


class Kept:
    """A service that keeps its promises: each request takes effect at once, when it is applied."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.topics = {"log": f.Topic(), "capped": f.Topic(lossy=True), "copy": f.Topic(), "jobs": f.Topic("queue")}
        self.routers = [f.Router("log", "copy")]
        self.records: dict[str, dict[int, tuple[str, str | None]]] = {name: {} for name in self.topics}
        self.heads = dict.fromkeys(self.topics, 0)
        self.evicted = 0
        self.deletes = rng.random() < 0.5
        """Whether clients delete from the log. If they do, its copies may lack records."""
        self.held: dict[int, tuple[str, int]] = {}
        """job → lease and its end."""
        self.leases = 0
        self.cursor = 0

    def floor(self, topic: str) -> int:
        return min(self.records[topic], default=self.heads[topic] + 1)

    def append(self, topic: str, bodies: list[str], tags: list[str | None]) -> f.Appended:
        first = self.heads[topic] + 1
        records = self.records[topic]
        for body, tag in zip(bodies, tags, strict=True):
            self.heads[topic] += 1
            records[self.heads[topic]] = body, tag
        if topic == "log":  # at least once
            for body in bodies:
                for _ in range(1 + (self.rng.random() < 0.05)):
                    self.heads["copy"] += 1
                    self.records["copy"][self.heads["copy"]] = body, None
        if topic == "capped":
            while len(records) > 20:
                self.evicted = self.floor(topic)
                del records[self.evicted]
        return f.Appended(first, self.heads[topic], self.heads[topic])

    def read(self, topic: str, after: int, limit: int) -> f.ReadResult:
        records = self.records[topic]
        gap = (after + 1, self.evicted) if topic == "capped" and after < self.evicted else None
        found = [(seq, body) for seq, (body, _) in sorted(records.items()) if seq > after][:limit]
        caught_up = len(found) < limit
        to = max(after, self.heads[topic]) if caught_up else found[-1][0]
        return f.ReadResult(found, to, self.heads[topic], self.floor(topic), caught_up, gap)

    def delete(self, before: int | None, tag: str | None) -> f.Bounds:
        records = self.records["log"]
        for seq in [s for s, (_, t) in records.items() if (before is None or s < before) and tag in (None, t)]:
            del records[seq]
        return f.Bounds(self.heads["log"], self.floor("log"))

    def claim(self, most: int, now_ns: int, lease_ms: int) -> f.ClaimResult:
        free = [seq for seq in sorted(self.records["jobs"]) if self.held.get(seq, ("", 0))[1] <= now_ns]
        found = []
        for seq in free[:most]:
            self.leases += 1
            self.held[seq] = f"lease{self.leases}", now_ns + lease_ms * STEP_NS
            found.append((seq, self.records["jobs"][seq][0], f"lease{self.leases}"))
        return f.ClaimResult(found)

    def use(
        self, kind: type[f.Operation], seqs: list[int], ids: list[str], now_ns: int, lease_ms: int
    ) -> f.LeaseResult:
        skipped = []
        for seq, lease in zip(seqs, ids, strict=True):
            if seq not in self.records["jobs"] or self.held[seq][0] != lease or self.held[seq][1] <= now_ns:
                skipped.append(seq)
            elif kind is f.Ack:
                del self.records["jobs"][seq]
            else:
                self.held[seq] = lease, now_ns + (lease_ms * STEP_NS if kind is f.Extend else 0)
        return f.LeaseResult(skipped)


class _Client:
    """Decides the next request of one client, and remembers what it needs for it."""

    def __init__(self, name: str, kept: Kept) -> None:
        self.name = name
        self.kept = kept
        self.rng = kept.rng
        self.sent = 0
        self.positions = dict.fromkeys(kept.topics, 0)
        self.leased: list[tuple[int, str]] = []
        self.stream = ""
        self.opened_ns = self.at = 0

    def next(self) -> tuple[type[f.Operation], dict[str, Any]]:
        rng = self.rng
        draw = rng.random()
        if draw < 0.35:
            topic = rng.choice(("log", "log", "capped", "jobs"))
            bodies = [f"{self.name}-{self.sent + n}" for n in range(rng.choice((1, 1, 2, 5)))]
            self.sent += len(bodies)
            tags = [rng.choice((None, "x", "y")) for _ in bodies]
            return f.Append, {"topic": topic, "args": f.AppendArgs(bodies, tags)}
        if draw < 0.55:
            topic = rng.choice(("log", "capped", "copy", "jobs"))
            after = rng.choice((0, self.positions[topic]))
            return f.Read, {"topic": topic, "args": f.ReadArgs(after)}
        if draw < 0.6:
            return f.GetState, {"topic": rng.choice(("log", "capped", "copy"))}
        if draw < 0.63 and self.kept.deletes:
            before = rng.choice((None, self.kept.floor("log") + rng.randrange(10)))
            return f.Delete, {"topic": "log", "args": f.DeleteArgs(before, "x" if before is None else None)}
        if draw < 0.75:
            if not self.stream or rng.random() < 0.1:
                self.stream = self.stream or self.name
                return f.Open, {"args": f.OpenArgs(self.stream, {"log": self.positions["log"]})}
            return f.Frame, {"topic": "log", "args": f.FrameArgs(self.stream)}
        if draw < 0.85 or not self.leased:
            if rng.random() < 0.3:
                return f.CursorGet, {"topic": "log", "args": f.CursorGetArgs("c")}
            if rng.random() < 0.4:
                return f.CursorPut, {"topic": "log", "args": f.CursorPutArgs("c", self.positions["log"])}
            return f.Claim, {"topic": "jobs", "args": f.ClaimArgs(self.name, rng.choice((5, 50)))}
        seqs, ids = zip(*dict(self.leased).items(), strict=True)
        kind = rng.choice((f.Ack, f.Ack, f.Nack, f.Extend))
        if kind is not f.Extend:
            self.leased = []
        return kind, {"topic": "jobs", "args": f.LeaseArgs(list(seqs), list(ids), 30)}

    def apply(self, kind: type[f.Operation], request: dict[str, Any], now_ns: int) -> Any:
        """What the service answers at this moment."""
        kept, args = self.kept, request.get("args")
        if kind is f.Append:
            return kept.append(request["topic"], args.bodies, args.tags)
        if kind is f.Read:
            return kept.read(request["topic"], args.from_seq, 7)
        if kind is f.GetState:
            return f.Bounds(kept.heads[request["topic"]], kept.floor(request["topic"]))
        if kind is f.Delete:
            return kept.delete(args.before_seq, args.tag)
        if kind is f.Open:
            self.opened_ns = now_ns
            self.at = args.positions["log"]
            return None
        if kind is f.Frame:
            found = kept.read("log", self.at, 5)
            self.at = found.next_from_seq
            if found.records:
                return f.FrameResult("records", found.records[-1][0] if not found.caught_up else self.at, found.records)
            return f.FrameResult("caught_up", self.at)
        if kind is f.CursorGet:
            return f.CursorResult(kept.cursor) if kept.cursor else None
        if kind is f.CursorPut:
            kept.cursor = max(kept.cursor, args.seq)
            return f.CursorResult(kept.cursor)
        if kind is f.Claim:
            return kept.claim(3, now_ns, args.lease_ms)
        return kept.use(kind, args.seqs, args.lease_ids, now_ns, args.lease_ms)

    def learn(self, kind: type[f.Operation], request: dict[str, Any], result: Any) -> None:
        """What the client knows from an answer that arrived."""
        if kind is f.Read:
            self.positions[request["topic"]] = max(self.positions[request["topic"]], result.next_from_seq)
        elif kind is f.Claim:
            self.leased += [(seq, lease) for seq, _, lease in result.jobs]


ALWAYS_ANSWERED = (f.Open, f.Frame)


def play(seed: int, operations: int, clients: int = 4) -> Story:
    """The history of a service that keeps its promises. Each request takes effect between its start and its end."""
    rng = random.Random(seed)
    kept = Kept(rng)
    story = Story(tuple(kept.routers), **kept.topics)
    ahead: list[tuple[int, int, Any]] = []
    crowd = [_Client(f"c{number}", kept) for number in range(clients)]
    for number in range(clients):
        heapq.heappush(ahead, (rng.randrange(STEP_NS), number, None))
    while ahead:
        now_ns, number, running = heapq.heappop(ahead)
        client = crowd[number]
        if running is None:
            if operations > 0:
                operations -= 1
                heapq.heappush(ahead, (now_ns + rng.randrange(1, 2 * STEP_NS), number, (*client.next(), now_ns)))
            continue
        kind, request, start_ns = running
        outcome = "ok" if kind in ALWAYS_ANSWERED else rng.choices(("ok", "unknown", "failed"), (20, 1, 1))[0]
        happens = outcome == "ok" or (outcome == "unknown" and rng.random() < 0.5)
        result = client.apply(kind, request, now_ns) if happens else None
        if outcome == "ok" and result is None and kind is not f.Open:
            outcome = "failed"
        if outcome == "ok":
            client.learn(kind, request, result)
        if kind is not f.Open:
            request["result"] = result if outcome == "ok" else None
        end_ns = now_ns + rng.randrange(1, 2 * STEP_NS)
        times = {"start_ns": client.opened_ns if kind is f.Frame else start_ns, "end_ns": end_ns}
        story.operations.append(kind(client=client.name, outcome=outcome, **times, **request))
        story.now_ns = max(story.now_ns, end_ns)
        heapq.heappush(ahead, (end_ns + rng.randrange(1, STEP_NS), number, None))
    story.operations.sort(key=lambda each: each.end_ns)
    story.settled()
    for name in kept.topics:
        story.add(f.Read, None, kept.read(name, 0, 1 << 40), "", topic=name, args=f.ReadArgs(0))
    return story
