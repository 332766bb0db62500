"""A queue against a model of it: workers crash, stall, ack twice, late or with stale tokens, and the shard dies.

With durable leases the model knows everything exactly: who holds what, how often each job was delivered, what is ready.
In the end every job was acked or dead-lettered, once, and nothing else is there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import trio
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from proto.errors import not_ready
from proto.message import Reply
from tests.support.fault_disk import FaultDisk
from tests.support.harness import Harness

WORKERS = st.sampled_from(["a", "b", "c"])
LEASE = 1000
MOST = 3
"""`max_deliveries`."""


@dataclass
class Job:
    """What the model knows. `holder` is whoever got it last and did not give it back."""

    deliveries: int = 0
    holder: str = ""
    token: str = ""
    until: int = -1
    delayed: int = -1


class Target:
    """The dead-letter topic's shard. It may take a letter and die before it says so."""

    def __init__(self, shard: Harness) -> None:
        self.shard = shard
        self.silent = False

    def index_of(self, topic: str) -> int:
        return 0

    async def request(self, index: int, op: str, topic: str, options: dict[str, Any], body: bytes = b"") -> Reply:
        reply = self.shard.reply(op, topic, body, **options)
        if reply.error is not None:
            raise reply.error
        if self.silent:
            raise not_ready("silence")
        return reply


class QueueMachine(RuleBasedStateMachine):
    @initialize(durability=st.sampled_from(["disk", "fsync"]))
    def begin(self, durability: str) -> None:
        self.shard = Harness()
        self.target = Target(Harness())
        self.shard.call(
            "configure",
            "q",
            {
                "type": "queue", "leases_durable": True, "durability": durability, "lease_ms": LEASE,
                "max_deliveries": MOST, "dead_letter": "dlq",
            },
        )  # fmt: skip
        self.jobs: dict[int, Job] = {}
        self.acked: set[int] = set()
        self.doomed: set[int] = set()
        self.buried: set[int] = set()
        self.old_tokens: list[tuple[int, str, str]] = []
        self.head = 0

    @property
    def now(self) -> int:
        return self.shard.clock.ms

    def leased(self, seq: int) -> bool:
        return self.jobs[seq].until >= self.now

    def claimable(self) -> list[int]:
        """In the order they are to be handed out."""
        free = [
            s for s, j in self.jobs.items() if s not in self.doomed and not self.leased(s) and j.delayed <= self.now
        ]
        return sorted(free, key=lambda seq: (not self.jobs[seq].deliveries, seq))

    @rule(count=st.integers(1, 6))
    def produce(self, count: int) -> None:
        self.shard.append("q", *range(count))
        for seq in range(self.head + 1, self.head + count + 1):
            self.jobs[seq] = Job()
        self.head += count

    @rule(worker=WORKERS, most=st.integers(1, 5))
    def claim(self, worker: str, most: int) -> None:
        claimed = self.shard.call("claim", "q", {"node": worker, "max": most})["claimed"]
        expected: list[int] = []
        for seq in self.claimable():
            if len(expected) == most:
                break
            if self.jobs[seq].deliveries >= MOST:
                self.doomed.add(seq)
            else:
                expected.append(seq)
        assert [job["$seq"] for job in claimed] == sorted(expected)
        for each in claimed:
            job = self.jobs[each["$seq"]]
            job.deliveries += 1
            assert each["deliveries"] == job.deliveries
            job.holder, job.token, job.until, job.delayed = worker, each["lease_id"], each["deadline"], -1
            assert job.until == self.now + LEASE
            self.old_tokens.append((each["$seq"], worker, job.token))

    @rule(data=st.data(), op=st.sampled_from(["ack", "ack", "nack", "extend"]), delay=st.sampled_from([0, 700]))
    def use(self, data: st.DataObject, op: str, delay: int) -> None:
        """Any token that was ever given out: current, late, stale, or of a job that is done."""
        if not self.old_tokens:
            return
        seq, worker, token = data.draw(st.sampled_from(self.old_tokens))
        fenced = data.draw(st.booleans())
        body: dict[str, Any] = {"node": worker, "seqs": [seq], "delay_ms": delay, "lease_ms": 2 * LEASE}
        if fenced:
            body["lease_ids"] = [token]
        job = self.jobs.get(seq)
        mine = (
            job is not None and seq not in self.doomed and job.holder == worker and (not fenced or job.token == token)
        )
        counts = mine and (op == "ack" or self.leased(seq))
        answer = self.shard.call(op, "q", body)
        assert answer["skipped"] == ([] if counts else [seq])
        if not counts:
            return
        assert job is not None
        if op == "ack":
            del self.jobs[seq]
            self.acked.add(seq)
        elif op == "nack":
            job.holder, job.until, job.delayed = "", -1, self.now + delay
        else:
            job.token, job.until = answer["lease_ids"][str(seq)], answer["deadlines"][str(seq)]
            assert job.until == self.now + 2 * LEASE
            self.old_tokens.append((seq, worker, job.token))

    @rule(ms=st.sampled_from([1, 300, LEASE, LEASE + 1]))
    def pass_time(self, ms: int) -> None:
        self.shard.clock.advance(ms)

    @rule(silent=st.booleans())
    def bury(self, silent: bool) -> None:
        self.target.silent = silent
        trio.run(self.shard.shard.dead_letters.bury, self.target)
        self.shard.shard.commits.sync_now()
        if not silent:
            for seq in self.doomed:
                self.jobs.pop(seq, None)
            self.buried |= self.doomed
            self.doomed.clear()

    @rule(how=st.sampled_from(["kill", "kill", "stop", "checkpoint and kill"]))
    def restart(self, how: str) -> None:
        if how == "stop":
            self.shard.shard.close()
        elif how != "kill":
            self.shard.shard.commits.sync_now()
            self.shard.shard.checkpoint_now()
        disk = self.shard.disk
        assert isinstance(disk, FaultDisk)
        self.shard = self.shard.restarted(disk.after_crash("process"))

    @invariant()
    def counters_are_exact(self) -> None:
        if not hasattr(self, "shard"):
            return
        state = self.shard.call("state", "q")
        assert state["count"] == len(self.jobs)
        assert state["queue"] == {
            "ready": len(self.claimable()),
            "in_flight": sum(map(self.leased, self.jobs)),
            "dead_lettered": len(self.buried),
        }

    def teardown(self) -> None:
        if not hasattr(self, "shard"):
            return
        while self.jobs:
            self.shard.clock.advance(2 * LEASE + 1)
            self.claim("last", 5)
            for seq in [s for s, j in self.jobs.items() if j.holder == "last" and s not in self.doomed]:
                self.shard.call("ack", "q", {"node": "last", "seqs": [seq]})
                del self.jobs[seq]
                self.acked.add(seq)
            self.bury(silent=False)
        assert self.shard.everything("q") == []
        letters = self.target.shard.everything("dlq") if self.buried else []
        assert sorted(r["meta"]["$dead_letter_src_seq"] for r in letters) == sorted(self.buried)
        assert self.acked | self.buried == set(range(1, self.head + 1))
        assert not self.acked & self.buried


TestQueue = QueueMachine.TestCase
TestQueue.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
