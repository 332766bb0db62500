"""A shard against a simple model of the log's promises, over any sequence of requests, stops and disk errors.

The model is lists and loops, written from the contract. After each step, the state of every topic is compared with it.
After each stop, the recovered state must be one of those that the model allows:

    clean stop, death of the process    the last acknowledged state
    death of the machine                any state since the last one that had to be on the device
    in the middle of a request          also the state after the request

One log has everything that a shard acknowledges, so the death of the machine loses a tail of that order.
`Machine.history` has the states since the last sync. Records of ephemeral topics come back if they were written under
another class. The head of such a topic is not lower than before, and exactly the same after a clean stop.

The seed is printed; `TOPICS_TEST_SEED` sets it. Without it, the short run is the same each time, and the long run
(`make long`) uses another seed.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import msgspec
import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from proto.model.errors import ErrorCode, TopicsError
from proto.model.limits import RECORD_OVERHEAD
from shardd.changes.seq_reservation import BLOCK
from tests.support.fault_disk import Crash, FaultDisk, Survival
from tests.support.harness import FakeClock, Harness

STEPS = 60
EXAMPLES = 200
NAMES = ("a", "b", "c")
TAGS = ("t", "t:1", "t:2", "ü", "")
NODES = ("n1", "n2")
KEYS = ("k1", "k2", "k3")

# The model


@dataclass(frozen=True)
class Record:
    seq: int
    ts: int
    data: str
    size: int
    tag: str | None
    node: str | None


@dataclass(frozen=True)
class Config:
    durability: str = "disk"
    ttl_ms: int = 0
    cap_records: int = 0
    cap_bytes: int = 0
    discard: str = "old"
    dedupe_node: bool = True
    idempotency_window_ms: int = 120_000

    def changed(self, fields: dict[str, Any]) -> Config:
        return replace(self, **fields)


@dataclass
class Log:
    """A topic. `lost` has `(seq, reason)` of every record that was lost, not deleted."""

    instance: int
    config: Config
    head: int = 0
    live: list[Record] = field(default_factory=list)
    lost: list[tuple[int, str]] = field(default_factory=list)
    keys: dict[str, tuple[int, int, int]] = field(default_factory=dict)
    maybe_keys: dict[str, tuple[int, int, int]] = field(default_factory=dict)
    """Keys of ephemeral writes, after a restart: the shard may still know them."""
    cursors: dict[str, int] = field(default_factory=dict)
    eras: list[tuple[int, int]] = field(default_factory=list)
    """Ranges of seqs that were written while the topic was ephemeral, and may be in no file."""
    switched: int = 0
    """The head when the topic last became ephemeral."""
    gaps: list[tuple[int, int]] = field(default_factory=list)
    """Records lost at restarts."""
    pushed: list[Record] = field(default_factory=list)
    """Records evicted by caps while the topic had records that the log has not: the machine's death may undo that."""
    vague_upto: int = 0
    """Below this seq, a restart may have changed the reasons of losses."""

    def copy(self) -> Log:
        return replace(
            self,
            live=list(self.live),
            lost=list(self.lost),
            keys=dict(self.keys),
            maybe_keys=dict(self.maybe_keys),
            eras=list(self.eras),
            gaps=list(self.gaps),
            pushed=list(self.pushed),
            cursors=dict(self.cursors),
        )

    @property
    def earliest(self) -> int:
        return self.live[0].seq if self.live else self.head + 1

    @property
    def evict_floor(self) -> int:
        taken = [seq for seq, _ in self.lost] + [last for _, last in self.gaps if last < self.earliest]
        return max(taken) + 1 if taken else 0

    @property
    def inner(self) -> list[tuple[int, int]]:
        """The gaps that are behind the first live record."""
        return [gap for gap in self.gaps if gap[1] >= self.earliest]

    @property
    def bytes(self) -> int:
        return sum(record.size for record in self.live)

    def expire(self, now: int) -> None:
        """Expired when `now - $ts > ttl_ms`."""
        while self.live and self.config.ttl_ms and now - self.live[0].ts > self.config.ttl_ms:
            self.lost.append((self.live.pop(0).seq, "ttl"))

    def evict(self) -> None:
        """The oldest records go until both caps hold. The newest one stays. A topic with `reject` loses none."""
        config = self.config
        if config.discard == "reject":
            return
        while len(self.live) > 1 and (
            (config.cap_records and len(self.live) > config.cap_records)
            or (config.cap_bytes and self.bytes > config.cap_bytes)
        ):
            if self.eras:
                self.pushed.append(self.live[0])
            self.lost.append((self.live.pop(0).seq, "cap"))

    def append(self, records: list[dict[str, Any]], node: str | None, key: str | None, now: int) -> tuple[int, int]:
        first = self.head + 1
        for sent in records:
            self.head += 1
            text = msgspec.json.encode(sent["data"]).decode()
            tag, origin = sent.get("tag"), sent.get("node", node)
            meta = b"" if "meta" not in sent else msgspec.json.encode(sent["meta"])
            sizes = map(len, (text.encode(), meta, (tag or "").encode(), (origin or "").encode()))
            self.live.append(Record(self.head, now, text, sum(sizes) + RECORD_OVERHEAD, tag, origin))
        if self.config.durability == "ephemeral":
            if self.eras and self.eras[-1][1] == first - 1 and self.eras[-1][0] > self.switched:
                first_of_era = self.eras.pop()[0]
            else:
                first_of_era = first
            self.eras.append((first_of_era, self.head))
        if key:
            self.keys[key] = (first, len(records), now)
            self.maybe_keys.pop(key, None)
        self.evict()
        return first, self.head

    def delete(self, before_seq: int | None, match: Callable[[str], bool] | None) -> int:
        """Both conditions must hold. A tag never matches untagged records."""
        end = self.head + 1 if before_seq is None else before_seq
        kept = [r for r in self.live if r.seq >= end or (match is not None and (r.tag is None or not match(r.tag)))]
        gone = len(self.live) - len(kept)
        self.live = kept
        return gone

    def stopped(self, head: int, earliest: int, survival: Survival, saved: bool) -> None:
        """A restart has found this head. `saved`: files have the records of the time before the class was changed from
        ephemeral."""
        ephemeral = self.config.durability == "ephemeral"
        taken = [] if saved else [era for era in self.eras if not ephemeral or era[0] <= self.switched]
        open_eras = [era for era in self.eras if ephemeral and era[0] > self.switched]
        if ephemeral and head > self.head:
            taken.append((open_eras[-1][0] if open_eras else self.head + 1, head))
        elif open_eras:  # a clean stop writes the exact head
            first = open_eras[-1][0]
            taken += [(first, record.seq) for record in self.live[-1:] if record.seq >= first]
            self.live = [record for record in self.live if record.seq < first]
        self.head = max(head, self.head) if ephemeral else self.head
        lost = [record for record in self.live if any(first <= record.seq <= last for first, last in taken)]
        self.live = [record for record in self.live if record not in lost]
        for first, last in taken:
            before = [gap for gap in self.gaps if gap[1] == first - 1]
            self.gaps = [gap for gap in self.gaps if gap not in before] + [(before[0][0] if before else first, last)]
            self.vague_upto = max(self.vague_upto, last)
        eras = taken + open_eras
        for known in [k for k, (at, _, _) in self.keys.items() if any(first <= at <= last for first, last in eras)]:
            self.maybe_keys[known] = self.keys.pop(known)
        if survival != "process":
            back = [r for r in self.pushed if r.seq >= earliest and not any(f <= r.seq <= last for f, last in eras)]
            self.live = sorted([*back, *self.live], key=lambda record: record.seq)
            self.lost = [each for each in self.lost if not back or each[0] < earliest]
        self.eras, self.pushed, self.switched = [], [], self.head

    def saved(self) -> None:
        """A checkpoint was made."""
        ephemeral = self.config.durability == "ephemeral"
        self.eras = [era for era in self.eras if ephemeral and era[0] > self.switched]
        self.pushed = []

    def reasons(self, gap_from: int) -> set[str]:
        """The reasons that a tombstone from `gap_from` on may have."""
        if gap_from <= self.vague_upto:
            return {"cap", "ttl", "mixed"}
        reasons = {reason for seq, reason in self.lost if seq >= gap_from}
        if any(gap_from <= last < self.earliest for _, last in self.gaps):
            reasons.add("cap")
        return reasons if len(reasons) == 1 else {"mixed"}


Model = dict[str, Log]


def copied(model: Model) -> Model:
    return {name: log.copy() for name, log in model.items()}


# The comparison


def read(shard: Harness, log: Log, name: str, from_seq: int, **options: Any) -> Iterator[str]:
    """Compare one diff with the model. Yields the differences."""
    answer = shard.diff(name, from_seq, include_tags=True, **options)
    yield from compare_read(answer, log, from_seq, options.get("limit", 256), options.get("node"))


def compare_read(answer: Any, log: Log, from_seq: int, limit: int, node: Any = None) -> Iterator[str]:
    tombstone, next_from = answer["tombstone"], answer["next_from_seq"]
    if from_seq > log.head:
        if tombstone is None or (tombstone["reason"], tombstone["gap_from"], tombstone["gap_to"]) != (
            "recreated",
            1,
            log.head,
        ):
            yield f"{tombstone} for a cursor at {from_seq} beyond the head {log.head}"
        from_seq = 0
    elif from_seq + 1 < log.evict_floor:
        if tombstone is None:
            yield f"no tombstone at {from_seq}, though records below {log.evict_floor} were lost"
        else:
            if (tombstone["gap_from"], tombstone["gap_to"]) != (from_seq + 1, log.earliest - 1):
                yield f"gap {tombstone} instead of {from_seq + 1} to {log.earliest - 1}"
            if tombstone["reason"] not in log.reasons(from_seq + 1):
                yield f"reason {tombstone['reason']} instead of {log.reasons(from_seq + 1)}"
        from_seq = log.earliest - 1
    elif inside := [last for first, last in log.inner if first <= from_seq + 1 <= last]:
        told = None if tombstone is None else [tombstone[name] for name in ("gap_from", "gap_to", "reason", "cause")]
        if told != [from_seq + 1, inside[0], "cap", "restart"]:
            yield f"{tombstone} at {from_seq} in a gap up to {inside[0]}"
        from_seq = inside[0]
    elif tombstone is not None:
        yield f"{tombstone} at {from_seq}, though nothing from there on was lost (floor {log.evict_floor})"
    stop = min([first - 1 for first, _ in log.inner if first > from_seq], default=log.head)
    rest = [r for r in log.live if from_seq < r.seq <= stop]
    window, after = rest[:limit], rest[limit : limit + 1]
    nodes = set() if node is None or not log.config.dedupe_node else {node} if isinstance(node, str) else set(node)
    expected = [(r.seq, r.ts, msgspec.json.decode(r.data), r.tag, r.node) for r in window if r.node not in nodes]
    found = [(r["$seq"], r["$ts"], r["data"], r.get("$tag"), r.get("$node")) for r in answer["records"]]
    if found != expected:
        yield f"records {found} instead of {expected}"
    if after:
        if not window[-1].seq <= next_from < after[0].seq:
            yield f"cursor at {next_from} after {window[-1].seq}, the next record being {after[0].seq}"
    elif not (next_from == stop or (len(window) == limit and window[-1].seq <= next_from <= stop)):
        yield f"cursor at {next_from} instead of {stop}"
    if answer["caught_up"] != (next_from == log.head) or answer["lag"] != log.head - next_from:
        yield f"caught_up {answer['caught_up']} and lag {answer['lag']} at {next_from} of {log.head}"
    if (answer["head_seq"], answer["earliest_seq"]) != (log.head, log.earliest):
        yield f"head {answer['head_seq']}, earliest {answer['earliest_seq']} instead of {log.head}, {log.earliest}"


def compare_state(shard: Harness, log: Log, name: str) -> Iterator[str]:
    state = shard.call("state", name)
    found = (state["head_seq"], state["next_seq"], state["earliest_seq"], state["count"], state["bytes"])
    expected = (log.head, log.head + 1, log.earliest, len(log.live), log.bytes)
    if found != expected:
        yield f"head, next, earliest, count, bytes {found} instead of {expected}"
    config = {name: state["config"][name] for name in Config.__dataclass_fields__}
    if config != vars(log.config):
        yield f"config {config} instead of {vars(log.config)}"


def compare_cursors(shard: Harness, log: Log, name: str) -> Iterator[str]:
    listed = shard.call("cursor_list", name, page_size=100)
    found = {entry["cursor"]: entry["seq"] for entry in listed}
    if found != log.cursors:
        yield f"cursors {found} instead of {log.cursors}"


def compare_log(shard: Harness, log: Log, name: str) -> Iterator[str]:
    """Compare everything that a reader can observe of a topic."""
    yield from compare_state(shard, log, name)
    edges = {seq for first, last in log.inner for seq in (first - 1, first, last - 1, last)}
    for from_seq in {0, max(log.evict_floor - 2, 0), max(log.evict_floor - 1, 0), log.head, log.head + 1} | edges:
        yield from read(shard, log, name, from_seq, limit=1000)


def compare(shard: Harness, model: Model) -> list[str]:
    found = {entry["topic"] for entry in shard.call("list", page_size=100)}
    if found != set(model):
        return [f"topics {sorted(found)} instead of {sorted(model)}"]
    return [f"{name}: {problem}" for name, log in model.items() for problem in compare_log(shard, log, name)]


# Requests to both

configs = st.fixed_dictionaries(
    {},
    optional={
        "durability": st.sampled_from(["disk", "disk", "fsync", "memory", "ephemeral"]),
        "ttl_ms": st.sampled_from([0, 50, 500]),
        "cap_records": st.sampled_from([0, 1, 3, 10, 30]),
        "cap_bytes": st.sampled_from([0, 1, 100, 500]),
        "discard": st.sampled_from(["old", "old", "reject"]),
        "dedupe_node": st.booleans(),
    },
)
created = st.builds(
    lambda config, window: {**config, **window},
    configs,
    st.sampled_from([{}, {"idempotency_window_ms": 60}]),
)
record = st.fixed_dictionaries(
    {"data": st.sampled_from([0, "x", "ü" * 10, None, {"k": [1.5]}, "y" * 60])},
    optional={
        "tag": st.sampled_from(TAGS),
        "node": st.sampled_from(NODES),
        "meta": st.sampled_from([{}, {"m": 1}]),
    },
)
writes = st.fixed_dictionaries(
    {"records": st.one_of(st.lists(record, min_size=1, max_size=3), st.lists(record, min_size=1, max_size=25))},
    optional={"node": st.sampled_from(NODES), "idempotency_key": st.sampled_from(KEYS)},
)
names = st.sampled_from(NAMES)
survivals = st.sampled_from(["process", "process", "drop", "tear"])
seeds = st.integers(0, 1000)


class Machine(RuleBasedStateMachine):
    steps = 0
    """Counts over all runs."""
    stops: ClassVar[dict[str, int]] = {}

    def __init__(self) -> None:
        super().__init__()
        self.model: Model = {}
        self.history: list[Model] = [{}]
        self.loose_cursors = False
        self.floors: dict[tuple[str, int], tuple[int, int]] = {}
        self.instances = 0
        self.armed: Callable[[FaultDisk], None] | None = None
        self.survival: tuple[Survival, int] = ("process", 0)

    @initialize(cold=st.booleans(), cached=st.booleans(), events=st.sampled_from([5, 40]))
    def start(self, cold: bool, cached: bool, events: int) -> None:
        limits: dict[str, Any] = {
            "wal_segment_bytes": 4096,
            "segment_max_events": events,
            "cache_bytes": 1 << 20 if cached else 0,
            "hot_retain_segments": 1,
        }
        if cold:
            limits["cold_dir"] = "/cold"
        self.shard = Harness(FaultDisk(), FakeClock(), **limits)

    @property
    def now(self) -> int:
        return self.shard.clock.ms

    @property
    def disk(self) -> FaultDisk:
        assert isinstance(self.shard.disk, FaultDisk)
        return self.shard.disk

    # Execution of a step

    def attempt(self, request: Callable[[], Any], *states: Model) -> Any:
        """The request's answer; None if the machine stopped or the disk failed in the middle of it.

        `states` are the states that a stop in the middle of it may lead to, besides the present one.
        """
        armed, self.armed = self.armed, None
        if armed is not None:
            armed(self.disk)
        try:
            return request()
        except Crash:
            self.recover(*self.survival, *states)
            return None
        except OSError:
            assert armed is not None
            return None
        except TopicsError as error:
            # Only an injected error may give such an answer.
            if armed is None or not from_the_disk(error):
                raise
            return None
        finally:
            self.disk.crash_at = None
            self.disk.faults.clear()

    def done(self, model: Model, *between: Model, synced: bool) -> None:
        """A request was acknowledged with this state. Before it, the shard went through the states `between`."""
        self.model = model
        if synced:
            self.history.clear()
            self.loose_cursors = False
        else:
            self.history += between
        self.history.append(copied(model))
        self.check()

    def check(self) -> None:
        for log in self.model.values():
            log.expire(self.now)
        problems = [
            f"{name}: {problem}" for name, log in self.model.items() for problem in compare_state(self.shard, log, name)
        ]
        assert not problems, problems
        records = sum(len(log.live) for log in self.model.values())
        size = sum(log.bytes for log in self.model.values())
        assert self.shard.shard.directory.counters() == (len(self.model), records, size)
        self.check_floors()
        Machine.steps += 1

    def check_floors(self) -> None:
        for name, log in self.model.items():
            assert log.evict_floor <= log.earliest
            before = self.floors.get((name, log.instance), (0, 0))
            assert before <= (log.earliest, before[1])
            assert before[1] <= log.evict_floor
            self.floors[name, log.instance] = (log.earliest, log.evict_floor)

    def recover(self, survival: Survival, number: int, *states: Model) -> None:
        """Start a new process on the files that the stop has left. It must have one of the possible states."""
        Machine.stops[survival] = Machine.stops.get(survival, 0) + 1
        acked = self.model
        self.shard = self.shard.restarted(self.disk.after_crash(survival, number))
        possible = [*self.history, self.model] if survival != "process" else [self.model]
        problems: list[str] = []
        for state in [*reversed(states), *reversed(possible)]:
            for found in self.after_restart(state, survival):
                problems = compare(self.shard, found)
                if not problems and survival != "process" and self.loose_cursors:
                    self.adopt_cursors(found, [*possible, *states])
                elif not problems:
                    problems = [f"{n}: {p}" for n, log in found.items() for p in compare_cursors(self.shard, log, n)]
                if not problems:
                    self.model = found
                    self.history = [copied(found)]
                    self.loose_cursors = False
                    self.no_seq_twice(acked)
                    if survival != "process":
                        self.floors.clear()
                    self.check()
                    self.again(found)
                    return
        raise AssertionError(f"after a stop ({survival}) none of {len(possible) + len(states)} states: {problems}")

    def after_restart(self, state: Model, survival: Survival) -> Iterator[Model]:
        """The states that a restart makes of a state: all records that were in memory only are gone, or all exist."""
        for kept in (False, True):
            found = copied(state)
            vague = False
            for name, log in found.items():
                topic = self.shard.shard.directory.visible.get(name)
                # Records lost with the machine may have used seqs: the topic goes on after all possible ones.
                jumps = survival != "process" and log.config.durability == "disk" and topic is not None
                if jumps and log.head < topic.records.head_seq <= log.head + 2 * BLOCK:
                    log.head = topic.records.head_seq
                vague = vague or bool(log.eras)
                if topic is not None:
                    log.stopped(topic.records.head_seq, topic.records.floor, survival, kept)
                log.expire(self.now)
            if not kept or vague:
                yield found

    def no_seq_twice(self, acked: Model) -> None:
        """All classes but `memory` may lose records, but their heads never go back."""
        for name, log in acked.items():
            found = self.model.get(name)
            if found is not None and found.instance == log.instance and log.config.durability != "memory":
                assert found.head >= log.head, f"{name}: seqs up to {log.head} were acked, but the head is {found.head}"

    def adopt_cursors(self, found: Model, possible: list[Model]) -> None:
        """Cursor moves since the last sync were in the log's tail: each cursor has a position of the time since."""
        for name, log in found.items():
            listed = self.shard.call("cursor_list", name, page_size=100)
            for entry in listed:
                values = {
                    state[name].cursors.get(entry["cursor"])
                    for state in possible
                    if name in state and state[name].instance == log.instance
                }
                assert entry["seq"] in values, f"{name}: cursor {entry} was never there ({values})"
            log.cursors = {entry["cursor"]: entry["seq"] for entry in listed}

    def again(self, found: Model) -> None:
        """A second recovery gives the same state."""
        shard = self.shard.restarted(self.disk.after_crash("process"))
        problems = [f"{n}: {p}" for n, log in found.items() for p in compare_log(shard, log, n)]
        assert not problems, f"recovered a second time: {problems}"

    # Steps

    @rule(after=st.integers(0, 12), survival=survivals, number=seeds)
    @precondition(lambda self: self.armed is None)
    def the_next_step_will_crash(self, after: int, survival: Survival, number: int) -> None:
        self.survival = (survival, number)

        def arm(disk: FaultDisk) -> None:
            disk.crash_at = len(disk.calls) + after

        self.armed = arm

    @rule(after=st.integers(0, 6), error=st.sampled_from([5, 28]), short=st.booleans())
    @precondition(lambda self: self.armed is None)
    def the_next_step_will_meet_a_disk_error(self, after: int, error: int, short: bool) -> None:
        def arm(disk: FaultDisk) -> None:
            disk.faults[len(disk.calls) + after] = 7 if short else OSError(error, "injected")

        self.armed = arm

    @rule(ms=st.sampled_from([0, 1, 20, 49, 50, 51, 120, 600]))
    def time_passes(self, ms: int) -> None:
        self.shard.clock.advance(ms)
        self.check()

    @rule(name=names, fields=created)
    def configure(self, name: str, fields: dict[str, Any]) -> None:
        after = copied(self.model)
        log = after.get(name)
        if log is None:
            after[name] = Log(self.instances, Config().changed(fields))
            self.instances += 1
            changed = True
        else:
            fields = {k: v for k, v in fields.items() if k != "idempotency_window_ms"}
            config = log.config.changed(fields)
            changed = config != log.config
            log.expire(self.now)
            if log.config.durability != "ephemeral" == config.durability:
                log.switched = log.head
            log.config = config
            log.expire(self.now)
            log.evict()
        answer = self.attempt(lambda: self.shard.call("configure", name, fields), after)
        if answer is not None:
            assert answer["created"] == (log is None)
            self.done(after, synced=changed)

    @rule(name=names, body=writes, config=st.none() | created, create=st.sampled_from([None, None, True, False]))
    def append(self, name: str, body: dict[str, Any], config: dict[str, Any] | None, create: bool | None) -> None:
        body = dict(body)
        if config is not None:
            body["config"] = config
        if create is not None:
            body["create"] = create
        self.write([(name, body)])

    @rule(group=st.lists(st.tuples(names, writes), min_size=2, max_size=4))
    def append_together(self, group: list[tuple[str, dict[str, Any]]]) -> None:
        """Writes that share one write call and one sync."""
        self.write([(name, dict(body)) for name, body in group])

    def write(self, group: list[tuple[str, dict[str, Any]]]) -> None:
        after = copied(self.model)
        states: list[Model] = []
        expected: list[Callable[[Any], None]] = []
        errors: list[ErrorCode | None] = []
        synced = False
        for name, body in group:
            error, check, gated = self.apply_write(after, states, name, body)
            errors.append(error)
            expected.append(check)
            synced = synced or gated
            states.append(copied(after))

        def request() -> list[Any]:
            idents = [self.shard.send("append", name, body) for name, body in group]
            self.shard.shard.flush()
            if any(ident not in self.shard.replies for ident in idents):
                self.shard.shard.commits.sync_now()
            replies: list[Any] = [self.shard.replies[ident] for ident in idents]
            refused = [r.error for r in replies if r.error is not None]
            failed = [e for e in refused if e.code == ErrorCode.NOT_READY or from_the_disk(e)]
            if failed:
                # One group is one write call: all of it exists or none, except changes that wait for a sync that fails.
                raise PartlyFailed(failed[0], replies)
            return replies

        try:
            replies = self.attempt(request, *states)
        except PartlyFailed as failure:
            self.partly(group, failure.replies)
            return
        if replies is None:
            return
        for reply, error, check in zip(replies, errors, expected, strict=True):
            assert (None if reply.error is None else reply.error.code) == error
            if error is None:
                check(msgspec.json.decode(reply.body))
        self.done(after, *states, synced=synced)

    def partly(self, group: list[tuple[str, dict[str, Any]]], replies: list[Any]) -> None:
        """The disk failed: acknowledged writes count, and no others."""
        after = copied(self.model)
        states: list[Model] = []
        for (name, body), reply in zip(group, replies, strict=True):
            if reply.error is None:
                _, check, _ = self.apply_write(after, states, name, body)
                check(msgspec.json.decode(reply.body))
                states.append(copied(after))
        self.done(after, *states, synced=False)

    def apply_write(
        self, after: Model, states: list[Model], name: str, body: dict[str, Any]
    ) -> tuple[ErrorCode | None, Callable[[Any], None], bool]:
        """The expected error, the check of the answer, and whether the answer means that all data is on the device."""
        log = after.get(name)
        key = body.get("idempotency_key")
        is_new = log is None
        count = len(body["records"])
        if log is None:
            if body.get("create") is False:
                return ErrorCode.TOPIC_NOT_FOUND, lambda answer: None, False
            log = Log(self.instances, Config().changed(body.get("config", {})))
            self.instances += 1
        log.expire(self.now)
        for known in (log.keys, log.maybe_keys):
            for old in [k for k, v in known.items() if self.now - v[2] > log.config.idempotency_window_ms]:
                del known[old]
        if key in log.keys:
            first, count, _ = log.keys[key]

            def deduped(answer: Any) -> None:
                assert answer["deduped"] is True
                assert (answer["seqs"], answer["created"]) == (list(range(first, first + count)), False)

            return None, deduped, False
        if key in log.maybe_keys:
            del body["idempotency_key"]  # nothing is promised, so nothing is checked
            key = None
        trial = log.copy()
        before = (len(trial.live), trial.bytes)
        trial.config = replace(trial.config, cap_records=0, cap_bytes=0)
        trial.append(body["records"], body.get("node"), None, self.now)
        size = trial.bytes - before[1]
        config = log.config
        if config.discard == "reject":
            if (config.cap_records and count > config.cap_records) or (config.cap_bytes and size > config.cap_bytes):
                return ErrorCode.RECORD_TOO_LARGE, lambda answer: None, False
            if (config.cap_records and before[0] + count > config.cap_records) or (
                config.cap_bytes and trial.bytes > config.cap_bytes
            ):
                return ErrorCode.TOPIC_FULL, lambda answer: None, False
        after[name] = log
        if is_new:
            states.append(copied(after))
        first, last = log.append(body["records"], body.get("node"), key, self.now)

        def check(answer: Any) -> None:
            assert (answer["first_seq"], answer["last_seq"]) == (first, last)
            assert answer["seqs"] == list(range(first, last + 1))
            assert (answer["count"], answer["created"], answer["deduped"]) == (count, is_new, False)

        return None, check, is_new or config.durability == "fsync"

    @rule(
        name=names,
        share=st.none() | st.floats(0, 1.2),
        match=st.none() | st.sampled_from(TAGS) | st.sampled_from([("Eq", "t"), ("Glob", "t*"), ("Glob", "*")]),
    )
    def delete_records(self, name: str, share: float | None, match: Any) -> None:
        body: dict[str, Any] = {}
        after = copied(self.model)
        log = after.get(name)
        if share is not None:
            body["before_seq"] = 0 if log is None else log.earliest + int(share * (log.head + 1 - log.earliest))
        if match is not None:
            body["match"] = match if isinstance(match, str) else ["tag", *match]
        if log is None or not body:
            with pytest.raises(TopicsError) as caught:
                self.shard.call("delete_records", name, body)
            assert caught.value.code in (ErrorCode.INVALID_REQUEST, ErrorCode.TOPIC_NOT_FOUND)
            return
        log.expire(self.now)
        wanted: Callable[[str], bool] | None = None
        if isinstance(match, str):
            wanted = match.__eq__
        elif match is not None:
            op, text = match
            wanted = text.__eq__ if op == "Eq" else lambda tag: tag.startswith(text[:-1])
        gone = log.delete(body.get("before_seq"), wanted)
        answer = self.attempt(lambda: self.shard.call("delete_records", name, body), after)
        if answer is not None:
            assert answer == {
                "topic": name,
                "deleted": gone,
                "earliest_seq": log.earliest,
                "head_seq": log.head,
                "count": len(log.live),
                "bytes": log.bytes,
            }
            self.done(after, synced=log.config.durability == "fsync")

    @rule(name=names, if_empty=st.booleans())
    def delete_topic(self, name: str, if_empty: bool) -> None:
        log = self.model.get(name)
        if log is not None:
            log.expire(self.now)
            if if_empty and log.live:
                with pytest.raises(TopicsError) as caught:
                    self.shard.call("delete_topic", name, if_empty=True)
                assert caught.value.code == ErrorCode.TOPIC_NOT_EMPTY
                return
        after = copied(self.model)
        after.pop(name, None)
        answer = self.attempt(lambda: self.shard.call("delete_topic", name, if_empty=if_empty), after)
        if answer is not None:
            assert answer["deleted"] == (log is not None)
            self.done(after, synced=log is not None)

    @rule(name=names, cursor=st.sampled_from(["x", "y"]), share=st.floats(0, 1), force=st.booleans())
    def move_cursor(self, name: str, cursor: str, share: float, force: bool) -> None:
        after = copied(self.model)
        log = after.get(name)
        if log is None:
            return
        seq = int(share * log.head)
        if force or seq >= log.cursors.get(cursor, 0):
            log.cursors[cursor] = seq
        body = {"seq": seq, "force": force}
        answer = self.attempt(lambda: self.shard.call("cursor_put", name, body, cursor=cursor), after)
        if answer is not None:
            assert answer["seq"] == log.cursors[cursor]
            self.done(after, synced=log.config.durability == "fsync")

    @rule(
        name=names,
        back=st.integers(-2, 40),
        limit=st.integers(1, 60),
        node=st.none() | st.sampled_from(NODES) | st.just(list(NODES)),
        cursor=st.none() | st.sampled_from(["x", "y"]),
    )
    def diff(self, name: str, back: int, limit: int, node: Any, cursor: str | None) -> None:
        log = self.model.get(name)
        if log is None:
            with pytest.raises(TopicsError) as caught:
                self.shard.diff(name)
            assert caught.value.code == ErrorCode.TOPIC_NOT_FOUND
            return
        log.expire(self.now)
        if cursor in log.cursors:
            body = {"cursor": cursor, "limit": limit, "include_tags": True}
            problems = list(compare_read(self.shard.call("diff", name, body), log, log.cursors[cursor], limit))
        else:
            problems = list(read(self.shard, log, name, max(log.head - back, 0), limit=limit, node=node))
        assert not problems, problems
        self.check()

    @rule(name=names)
    def read_all(self, name: str) -> None:
        log = self.model.get(name)
        if log is not None:
            log.expire(self.now)
            problems = [*compare_log(self.shard, log, name), *compare_cursors(self.shard, log, name)]
            assert not problems, problems

    @rule()
    def sync(self) -> None:
        fine = self.armed is None

        def request() -> bool:
            self.shard.shard.commits.sync_now()
            return True

        if self.attempt(request):
            self.done(self.model, synced=fine)

    @rule()
    def maintain(self) -> None:
        self.shard.shard.maintain()
        self.check()

    @rule(sync=st.booleans())
    def checkpoint(self, sync: bool) -> None:
        """After it, records are in files. Cursor moves wait for the log's next sync."""
        after = copied(self.model)
        for log in after.values():
            log.saved()

        def request() -> bool:
            if sync:
                self.shard.shard.commits.sync_now()
            self.shard.shard.checkpoint_now()
            return True

        self.loose_cursors = True
        armed = self.armed is not None
        if self.attempt(request, after):
            cursors = self.history
            self.done(after, synced=sync and not armed)
            if not sync:
                # The records of earlier states are no longer possible, their cursors are.
                self.history = [
                    {
                        name: replace(log.copy(), cursors=dict(state[name].cursors))
                        if name in state and state[name].instance == log.instance
                        else log.copy()
                        for name, log in after.items()
                    }
                    for state in [*cursors, after]
                ]
        elif armed:
            self.check()

    @rule()
    def restart(self) -> None:
        """A clean stop."""
        after = copied(self.model)
        armed = self.armed is not None
        for log in after.values():
            if not armed:
                log.saved()
        self.loose_cursors = True

        def request() -> bool:
            self.shard.shard.close()
            return True

        if self.attempt(request, after):
            self.model = after
            self.recover("process", 0)
            for name, log in after.items():
                assert armed or self.model[name].head == log.head, f"{name}: a clean stop has moved the head"

    @rule(survival=survivals, number=seeds)
    def crash(self, survival: Survival, number: int) -> None:
        self.armed = None
        self.recover(survival, number)


def from_the_disk(error: TopicsError) -> bool:
    """True if the error says that the disk failed or had no space."""
    if error.code == ErrorCode.THROTTLED:
        return (error.detail or {}).get("limit") == "disk_free"
    return error.code == ErrorCode.NOT_READY and error.detail == {"reason": "write_failed"}


class PartlyFailed(Exception):
    def __init__(self, error: TopicsError, replies: list[Any]) -> None:
        super().__init__(str(error))
        self.replies = replies


def run(examples: int, steps: int, number: int) -> None:
    seed(number)(Machine)
    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            database=None,
            print_blob=False,
            report_multiple_bugs=False,
            phases=[Phase.generate, Phase.shrink] if os.environ.get("TOPICS_TEST_SHRINK") else [Phase.generate],
            suppress_health_check=list(HealthCheck),
        ),
    )


DEFAULT_SEED = 1038919563


def test_any_sequence_of_requests_and_stops_keeps_to_the_model(capsys: pytest.CaptureFixture[str]) -> None:
    number = int(os.environ.get("TOPICS_TEST_SEED") or DEFAULT_SEED)
    with capsys.disabled():
        print(f"\nlog model: TOPICS_TEST_SEED={number}")  # noqa: T201
    Machine.steps = 0
    Machine.stops.clear()
    run(EXAMPLES, STEPS, number)
    assert Machine.steps >= 2000
    assert set(Machine.stops) == {"process", "drop", "tear"}


@pytest.mark.long
def test_many_more_sequences(capsys: pytest.CaptureFixture[str]) -> None:
    number = int(os.environ.get("TOPICS_TEST_SEED") or random.randrange(1 << 32))
    with capsys.disabled():
        print(f"\nlog model, long: TOPICS_TEST_SEED={number}")  # noqa: T201
    run(2000, 100, number)
