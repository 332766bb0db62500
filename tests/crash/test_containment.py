"""An exception at each call that a request makes on a shard, for every operation.

Whatever the call, one of two things is true afterwards:

    contained   the request got `500`, nothing else has changed, and the same request then succeeds
    the end     memory was half changed, or the log was being written. A new process has all that was acknowledged, and
                the request's effect wholly or not at all
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from proto.ipc.message import Parked, Reply
from proto.ipc.operations import TABLE, RegistrarRequest
from proto.model.errors import ErrorCode
from proto.model.router import RouterConfig, as_map
from proto.process.faults import faults
from shardd.storage.indivisible import Undone, indivisible
from tests.support.harness import Harness
from tests.support.picture import changes, picture

# An exception at the end of a generator that was left has no effect, and Python says so.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
ROOT = Path(__file__).parents[2]
_PLACES = (str(ROOT / "shardd"), str(ROOT / "proto"))
_NOT_AT = {"indivisible.py", "containment.py", "faults.py"}
"""The net itself: an exception in it ends the process, which needs no proof."""

PASSED_OVER = (
    # of the test itself
    "disk", "_disk", "clock", "_clock",
    # the time: what is over its age, or was used or asked for last
    "totals", "old", "last_ts",
    "last_read_ts", "used_ms", "_delays", "_served", "_at", "_credit", "_banded_at", "refused_total",
    # numbers that are given once and then never again
    "next_id", "staged_total", "_order", "block",
    # hints: larger than needed they cost a sync or a look, and no promise
    "sync_required_no", "logged_no", "catalogued", "_free", "_looked_at", "_since", "_new", "_taken", "counted_in",
    # heaps whose entries count only if the job says so, and streams that hold nothing
    "_timers", "_tracked", "_reclaim", "_deadlines", "streams",
    # what an order says: it counts, although its answer failed
    "report",
    # made when it is first needed
    "_tags", "_columns", "_loaded", "wakes", "_urgent", "_work",
)  # fmt: skip


class Injected(Exception):
    """A defect of the shard."""


class Injector:
    """Raises `Injected` at the `at`th call that code of the shard makes. `done` tells whether it did."""

    def __init__(self, at: int) -> None:
        self._left = at
        self.done = False
        self.where = ""

    def __enter__(self) -> Injector:
        sys.setprofile(self._called)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def _called(self, frame: FrameType, event: str, arg: Any) -> None:
        if event not in ("call", "c_call"):
            return
        path = frame.f_code.co_filename
        if not path.startswith(_PLACES) or path.rpartition("/")[2] in _NOT_AT:
            return
        self._left -= 1
        if self._left == 0:
            sys.setprofile(None)
            self.done = True
            self.where = f"{path.removeprefix(str(ROOT))}:{frame.f_lineno} {frame.f_code.co_name} {event}"
            raise Injected(self.where)


Case = tuple[str, str, Any, dict[str, Any]]
"""Operation, topic, body, options."""
OWNER = b"owner"
VERSION = 5
"""The version of the names of `prepared`."""
OLD = 2
"""Id of the topic whose records are over their age. They go whenever a request looks at it."""
WID = "wid_" + "0" * 32
TAKEN = "wid_" + "2" * 32
STREAM: dict[str, Any] = {"stream": "s", "node": "w", "max": 2, "lease_ms": None}
FEED: dict[str, Any] = {
    "epoch": 0, "from_seq": 0, "wait_ms": 0, "touch": True, "limit": 10, "budget": 1000, "nodes": (), "tags": True,
    "meta": True, "data": True, "strong": False,
}  # fmt: skip


def prepared() -> Harness:
    """A shard with something of each kind."""
    h = Harness(max_body_bytes=1 << 20)
    h.append("log", 1, 2, 3)
    h.call("append", "log", {"records": [{"data": 4, "tag": "t"}], "idempotency_key": "k"})
    h.call("configure", "old", {"ttl_ms": 1000})
    h.append("old", 1)
    h.call("configure", "fast", {"durability": "ephemeral", "cap_records": 2})
    h.append("fast", 1, 2)
    h.call("configure", "jobs", {"type": "queue", "max_deliveries": 1, "dead_letter": "dead", "leases_durable": True})
    h.append("jobs", *range(6))
    h.call("configure", "plain", {"type": "queue"})
    h.append("plain", *range(4))
    h.call("configure", "idle", {"type": "queue"})
    h.call("claim", "plain", {"node": "w", "max": 2})
    h.call("claim", "jobs", {"node": "w", "max": 2})
    h.call("cursor_put", "log", {"seq": 1}, cursor="c")
    h.append("dest", 1)
    h.append("dead", 1)
    h.call("log_create", "rog", partitions=2)
    h.call("session_make", WID, {"log": [1, 0, 0]}, owner=OWNER, options={})
    h.call("session_make", TAKEN, {}, owner=OWNER, options={})
    h.call("session_move", "", {WID: [0, {}, 1, False]})
    h.call("ticket_make", ticket=b"old", path=b"p", owner=OWNER, scopes=1, prefixes=())
    names = h.shard.names
    names._version = names._told = VERSION
    h.shard.allowance.divides = 1
    h.clock.advance(2000)  # the records of "old" are over their age
    h.shard.commits.sync_now()
    return h


def routed() -> Harness:
    h = prepared()
    h.call("router_put", "dest", router="r", config=config(), epoch=1, head=4)
    return h


def config() -> dict[str, Any]:
    return as_map(RouterConfig("log", "dest"))


CASES: list[Case] = [
    ("append", "log", {"records": [{"data": 5, "tag": "t", "node": "n", "meta": {"a": 1}}]}, {}),
    ("append", "log", {"records": [{"data": 5}], "idempotency_key": "new"}, {}),
    ("append", "log", {"records": [{"data": 4}], "idempotency_key": "k"}, {}),
    ("append", "new", {"records": [{"data": 5}], "config": {"durability": "fsync"}}, {}),
    ("append", "fast", {"records": [{"data": 5}]}, {}),
    ("append", "plain", {"records": [{"data": 5, "delay_ms": 10}]}, {}),
    ("append", "dead", {"records": [{"data": 5}]}, {"letters": (b"source", (1,)), "stamped": True}),
    ("diff", "log", {"from_seq": 0}, {}),
    ("diff", "old", {"from_seq": 0}, {}),
    ("state", "jobs", b"", {}),
    ("configure", "made", {"ttl_ms": 5}, {}),
    ("configure", "log", {"durability": "ephemeral", "cap_records": 2}, {}),
    ("delete_topic", "log", b"", {}),
    ("delete_records", "log", {"before_seq": 3}, {}),
    ("delete_records", "log", {"match": ["tag", "Eq", "t"]}, {}),
    ("cursor_put", "log", {"seq": 2}, {"cursor": "d", "maker": b"12345678", "most_made": 9}),
    ("cursor_get", "log", b"", {"cursor": "c"}),
    ("cursor_delete", "log", b"", {"cursor": "c"}),
    ("cursor_list", "log", b"", {"page_size": 10}),
    ("all_cursors", "", b"", {"page_size": 10}),
    ("list", "", b"", {"page_size": 10}),
    ("take", "log", b"", {"cursor": "c"}),
    ("peek", "log", b"", {"cursor": "c"}),
    ("step", "log", b"", {"cursor": "c"}),
    ("log_create", "rog2", b"", {"partitions": 3}),
    ("log_find", "rog", b"", {}),
    ("claim", "plain", {"node": "v", "max": 2}, {}),
    ("claim", "jobs", {"node": "v", "max": 2}, {}),
    ("claim", "jobs", {"node": "w", "max": 2, "ack": {"seqs": [1]}, "nack": {"seqs": [2], "delay_ms": 5}}, {}),
    ("claim", "plain", {"node": "w", "max": 2, "ack": {"seqs": [1]}, "nack": {"seqs": [2], "reason": "why"}}, {}),
    ("ack", "plain", {"node": "w", "seqs": [1, 2]}, {}),
    ("ack", "jobs", {"node": "w", "seqs": [1]}, {}),
    ("nack", "plain", {"node": "w", "seqs": [1, 2], "delay_ms": 5}, {}),
    ("nack", "jobs", {"node": "w", "seqs": [1]}, {}),
    ("nack", "jobs", {"node": "w", "seqs": [1], "reason": "why"}, {}),
    ("extend", "jobs", {"node": "w", "seqs": [1], "lease_ms": 5000}, {}),
    ("extend", "plain", {"node": "w", "seqs": [1], "lease_ms": 5000}, {}),
    ("peek_jobs", "jobs", {"limit": 5}, {}),
    ("redrive", "dead", {"queue": "jobs"}, {}),
    ("work_open", "plain", b"", STREAM),
    ("work_take", "plain", b"", STREAM),
    ("work_close", "plain", b"", {"stream": "s"}),
    ("router_source", "log", b"", {}),
    ("router_put", "dest", b"", {"router": "r2", "config": config(), "epoch": 1, "head": 4}),
    ("router_delete", "dest", b"", {"router": "r"}),
    ("router_hold", "", b"", {"source": "log"}),
    ("router_get", "dest", b"", {"router": "r"}),
    ("router_list", "", b"", {"page_size": 10}),
    ("router_graph", "", b"", {}),
    ("router_position", "log", b"", {"epoch": 1}),
    ("pull", "log", b"", {"epoch": 1, "after": 0}),
    ("feed", "log", b"", FEED),
    ("watch_resolve", "", b"", {"names": ("log", "none")}),
    ("watch_names", "", b"", {"prefix": "", "prefixes": (), "most": 10}),
    ("name_changes", "", b"", {"since": 4}),
    ("session_make", "wid_" + "1" * 32, {"log": [1, 0, 0]}, {"owner": OWNER, "options": {"limit": 1}}),
    ("session_open", WID, b"", {"owner": OWNER}),
    ("session_take", TAKEN, b"", {"owner": OWNER}),
    ("session_move", "", {WID: [0, {"log": [1, 2, 0]}, 1, False]}, {}),
    ("session_move", "", {WID: [0, {"log": [1, 2, 0]}, 2, True]}, {}),
    ("session_count", "", b"", {"owner": OWNER}),
    ("ticket_make", "", b"", {"ticket": b"new", "path": b"p", "owner": OWNER, "scopes": 1, "prefixes": ("a",)}),
    ("ticket_use", "", b"", {"ticket": b"old", "path": b"p"}),
    ("stats", "", b"", {"per_topic": 10, "cursors": 10}),
    ("sample", "", b"", {}),
    ("room_want", "", b"", {"shard": 0, "at": (0, 0, 0, 0), "limit": (1, 1), "want": (1, 1)}),
    ("room_order", "", b"", {"at": (1, 1, 0, 1)}),
]
PARKED: list[Case] = [
    ("diff", "log", {"from_seq": 4, "wait_ms": 1000}, {}),
    ("feed", "log", b"", {**FEED, "from_seq": 4, "wait_ms": 1000}),
    ("pull", "log", b"", {"epoch": 1, "after": 4, "wait": True}),
    ("claim", "idle", {"node": "v", "max": 9, "wait_ms": 1000}, {}),
    ("claim", "idle", {"node": "v", "max": 9, "wait_ms": 1000, "ack": {"seqs": [1]}}, {}),
    ("name_changes", "", b"", {"since": VERSION}),
    ("session_news", "", b"", {}),
    ("session_take", WID, b"", {"owner": OWNER}),
]
NO_CASE = {"ping", *(row.op for row in TABLE if issubclass(row.request, RegistrarRequest))}
"""The registrar carries out its requests in steps, which have cases: `tests/unit/shardd/routers/test_registrar.py`."""
_OWN = {case[0] for case in CASES + PARKED} | NO_CASE
CASES += [
    (row.op, "log", b"", {})
    for row in TABLE
    if row.op not in _OWN and len(row.request.__struct_defaults__) == len(row.request.__struct_fields__)
]
"""And those of a topic that need nothing else."""


def test_every_operation_has_a_case() -> None:
    assert {row.op for row in TABLE} == {case[0] for case in CASES + PARKED} | NO_CASE


@pytest.fixture(autouse=True)
def whole() -> Iterator[None]:
    yield
    indivisible.broken = False


def ask(h: Harness, case: Case) -> int:
    op, topic, body, options = case
    ident = h.send(op, topic, body, **options)
    h.shard.flush()
    if not isinstance(h.replies.get(ident), Reply):
        h.shard.commits.sync_now()
    if h.shard.control.due:
        h.shard.checkpoint_now()
    return ident


def of(h: Harness) -> dict[str, Any]:
    return picture(h.shard, PASSED_OVER)


def harmed(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    over_age = f".directory.by_id.{OLD}"
    return [each for each in changes(before, after) if not each.startswith(over_age)]


def leases(h: Harness) -> dict[str, Any]:
    found = {}
    for name in ("jobs", "plain"):
        queue = h.shard.directory.find(name).queue
        assert queue is not None
        held = {seq: (job.state, job.deliveries, job.node) for seq, job in queue.jobs.items() if job.node}
        found[name] = held, h.call("state", name)["queue"]
    return found


def finished(h: Harness, case: Case) -> Harness:
    """A shard on which what a claim finishes was finished by requests of their own."""
    for op in ("ack", "nack"):
        h.call(op, case[1], {"node": case[2]["node"], **case[2][op]})
    return h


def contents(h: Harness) -> dict[str, Any]:
    """What a new process on the same files would say."""
    indivisible.broken = False
    h = h.restarted()
    if not h.shard.restoring.restored:
        return {"routers": {name: (each.config, each.since) for name, each in h.shard.routing.routers().items()}}
    names = sorted(h.shard.directory.visible)
    said = {name: h.everything(name) for name in names}
    states = {name: h.call("state", name) for name in names}
    for state in states.values():
        for passing in ("last_read_ts", "effective_priority", "performance"):
            state.pop(passing, None)
    cursors = {name: h.call("cursor_list", name, page_size=100) for name in names}
    return {"records": said, "states": states, "cursors": cursors, "logs": dict(h.shard.directory.logs)}


def run(case: Case, made: Callable[[], Harness], stride: int, first: int = 1) -> tuple[int, int]:
    """Inject at every `stride`th call. Return how many faults were contained, and how many were the end."""
    h = made()
    before, kept = of(h), contents(made())
    done = made()
    assert ask(done, case) in done.replies
    effect = contents(done)
    contained = ended = 0
    at = first
    while True:
        counted = faults.counts.total()
        replies = dict(h.replies)
        injector = Injector(at)
        try:
            with injector:
                ident = ask(h, case)
        except (Injected, Undone):
            ended += 1
            fresh = [reply for ident, reply in h.replies.items() if ident not in replies and isinstance(reply, Reply)]
            found = contents(h)
            acknowledged = any(reply.error is None for reply in fresh)
            assert found == effect or (found == kept and not acknowledged), injector.where
            h = made()
            before = of(h)
        else:
            reply = h.replies.get(ident)
            if not injector.done:
                assert isinstance(reply, Parked) == (case in PARKED)
                assert not isinstance(reply, Reply) or reply.error is None
                return contained, ended
            if faults.counts.total() == counted:
                h = made()  # the exception was expected there, and handled
                before = of(h)
            else:
                contained += 1
                assert isinstance(reply, Reply), injector.where
                if reply.error is None:  # the answer failed after the ack was made, so another one told of that alone
                    assert b'"claimed":[],' in reply.body, injector.where
                    assert b'"ack":{"acked":1,' in reply.body, injector.where
                    assert leases(h) == leases(finished(made(), case)), injector.where
                    h = made()
                    before = of(h)
                    at += stride
                    continue
                assert reply.error.code is ErrorCode.INTERNAL, injector.where
                if case[0] in ("claim", "work_take"):
                    # The answer failed after the jobs were leased: they are claimable again, by a change of their own.
                    assert leases(h) == leases(made()), injector.where
                    h = made()
                    before = of(h)
                    at += stride
                    continue
                assert not harmed(before, of(h)), injector.where
                topics = h.shard.directory.visible.values()
                found = [topic.records for topic in topics]
                records, size = sum(each.count for each in found), sum(each.bytes for each in found)
                assert h.shard.directory.counters() == (len(topics), records, size), injector.where
                for each in found:
                    assert each.count == sum(batch.live for batch in each.batches), injector.where
        at += stride


def _name(case: Case) -> str:
    return f"{case[0]}-{case[1]}-{len(str(case[2]))}"


@pytest.mark.parametrize("case", CASES + PARKED, ids=_name)
def test_a_fault_in_a_request_harms_no_other(case: Case) -> None:
    made = routed if case[0].startswith("router") else prepared
    contained, ended = run(case, made, 1)
    assert contained + ended
