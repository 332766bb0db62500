"""A queue against a model of it.

Workers crash, stall, and ack twice, late or with stale tokens. Letters go to another shard and come back. Either shard
dies, with its machine or without.

The model knows the holder and the deliveries of each job, and which jobs are ready. It knows what a crash loses if
leases are not durable. In the end every job was acked or is in the dead-letter topic, once, and there are no others.
Jobs are identified by their data, because a redriven job has another seq.
"""

from __future__ import annotations

import os
from collections.abc import Coroutine
from dataclasses import dataclass
from errno import EIO
from itertools import count as counting
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from proto.ipc.message import Reply
from proto.ipc.operations import Operation
from proto.model.errors import not_ready
from tests.support.fault_disk import FaultDisk, Survival
from tests.support.harness import FakeClock, Harness

WORKERS = st.sampled_from(["a", "b", "c"])
LEASE = 1000
MOST = 3
"""`max_deliveries`."""


@dataclass
class Job:
    """A job in the model. `holder` is the last worker that got it and did not give it back. `known` jobs have an entry
    in the queue, so they go before those without. `due` is the end of a published delay, if a crash restores it."""

    data: int
    deliveries: int = 0
    holder: str = ""
    token: str = ""
    until: int = -1
    delayed: int = -1
    known: bool = False
    due: int = -1


class Link:
    """The link to the other shard, which may store a batch and die before it answers."""

    def __init__(self, machine: QueueMachine, side: str) -> None:
        self.machine = machine
        self.side = side
        self.silent = False

    def index_of(self, topic: str) -> int:
        return 0

    async def request(self, index: int, operation: Operation[Any], topic: str, body: bytes = b"") -> Reply:
        there: Harness = getattr(self.machine, self.side)
        reply = there.reply(operation, topic, body)
        if reply.error is not None:
            raise reply.error
        if self.silent:
            raise not_ready("silence")
        return reply


class QueueMachine(RuleBasedStateMachine):
    @initialize(durability=st.sampled_from(["disk", "fsync"]), durable=st.booleans(), letters=st.booleans())
    def begin(self, durability: str, durable: bool, letters: bool) -> None:
        clock = FakeClock()
        self.durability, self.durable = durability, durable
        self.here, self.there = Harness(clock=clock), Harness(clock=clock)
        self.out, self.back = Link(self, "there"), Link(self, "here")
        self.here.call(
            "configure",
            "q",
            {
                "type": "queue", "leases_durable": durable, "durability": durability, "lease_ms": LEASE,
                "max_deliveries": MOST, "dead_letter": "dlq", "idempotency_window_ms": 1,
            },
        )  # fmt: skip
        self.there.call(
            "configure",
            "dlq",
            {"type": "queue" if letters else "log", "idempotency_window_ms": 1, "durability": "fsync"},
        )
        self.numbers = counting()
        self.produced: set[int] = set()
        self.jobs: dict[int, Job] = {}
        self.acked: set[int] = set()
        self.doomed: set[int] = set()
        """Seqs of jobs that move to the dead-letter topic."""
        self.dead: dict[int, int] = {}
        """Jobs in the dead-letter topic: deliveries by data."""
        self.homeward: set[int] = set()
        """Data of jobs that were ordered to come back and have not arrived yet."""
        self.buried = 0
        self.old_tokens: list[tuple[int, str, str]] = []
        self.changed = False
        """True if leases have changed since the last start."""

    @property
    def now(self) -> int:
        return self.here.clock.ms

    def leased(self, seq: int) -> bool:
        return self.jobs[seq].until >= self.now

    def held(self) -> list[int]:
        return [seq for seq in self.jobs if self.leased(seq)]

    def claimable(self) -> list[int]:
        """Ready jobs in the order of delivery."""
        free = [
            s for s, j in self.jobs.items() if s not in self.doomed and not self.leased(s) and j.delayed <= self.now
        ]
        return sorted(free, key=lambda seq: (not self.jobs[seq].known, seq))

    @rule(delays=st.lists(st.sampled_from([0, 0, 0, 400, 1500]), min_size=1, max_size=5))
    def produce(self, delays: list[int]) -> None:
        data = [next(self.numbers) for _ in delays]
        self.produced |= set(data)
        records = [{"data": each, "delay_ms": delay} for each, delay in zip(data, delays, strict=True)]
        seqs = self.here.call("append", "q", {"records": records})["seqs"]
        for seq, each, delay in zip(seqs, data, delays, strict=True):
            self.jobs[seq] = Job(each)
            if delay:
                self.jobs[seq].delayed = self.jobs[seq].due = self.now + delay
                self.jobs[seq].known = True

    @rule(worker=WORKERS, most=st.integers(1, 5))
    def claim(self, worker: str, most: int) -> None:
        self.claimed(self.here.call("claim", "q", {"node": worker, "max": most}), worker, most)

    def claimed(self, answer: Any, worker: str, most: int) -> None:
        """What a claim that is answered at once has done."""
        claimed = answer["claimed"]
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
            assert (each["deliveries"], each["data"]) == (job.deliveries, job.data)
            job.holder, job.token, job.until, job.delayed = worker, each["lease_id"], each["deadline"], -1
            job.known = self.changed = True
            assert job.until == self.now + LEASE
            self.old_tokens.append((each["$seq"], worker, job.token))

    def mine(self, seq: int, worker: str, token: str | None, op: str) -> bool:
        """Whether an ack, a nack or an extend of a job counts."""
        job = self.jobs.get(seq)
        held = job is not None and seq not in self.doomed and job.holder == worker and token in (None, job.token)
        return held and (op == "ack" or self.leased(seq))

    def ended(self, seq: int, op: str, delay: int) -> None:
        """An ack or a nack of a job has counted."""
        job = self.jobs[seq]
        if op == "ack":
            del self.jobs[seq]
            self.acked.add(job.data)
        else:
            job.holder, job.until, job.delayed = "", -1, self.now + delay
            self.changed = True

    @rule(
        data=st.data(),
        worker=WORKERS,
        most=st.integers(1, 5),
        delay=st.sampled_from([0, 700]),
        how=st.sampled_from(["good", "good", "refused", "waits"]),
    )
    def finish_and_claim(self, data: st.DataObject, worker: str, most: int, delay: int, how: str) -> None:
        """An ack, a nack or both in a claim, of any tokens that were ever issued. It is carried out, or its write fails
        and nothing of it is, or it waits because there are no jobs."""
        if not self.old_tokens:
            return
        parts: dict[str, dict[str, Any]] = {}
        expected: dict[str, tuple[list[int], list[int]]] = {}
        gone: set[int] = set()
        for op in data.draw(st.sampled_from([["ack"], ["nack"], ["ack", "nack"]])):
            tokens = data.draw(st.lists(st.sampled_from(self.old_tokens), min_size=1, max_size=3))
            seqs = [seq for seq, _, _ in tokens]
            parts[op] = {"node": tokens[0][1], "seqs": seqs, "delay_ms": delay} | (
                {"lease_ids": [token for _, _, token in tokens]} if data.draw(st.booleans()) else {}
            )
            if op == "ack":
                del parts[op]["delay_ms"]
            counts, skipped = expected[op] = [], []
            for seq, _, token in tokens:
                fence = token if "lease_ids" in parts[op] else None
                good = seq not in gone and self.mine(seq, tokens[0][1], fence, op)
                (counts if good else skipped).append(seq)
                gone |= {seq} if good else set()
        if how == "refused":
            if expected.get("ack", ([], []))[0]:  # else it may need no write
                self.refused_claim({"node": worker, "max": most, **parts})
            return
        for op, (counts, _) in expected.items():
            for seq in counts:
                self.ended(seq, op, delay)
        body: dict[str, Any] = {"node": worker, "max": most, **parts}
        if how == "waits" and not self.claimable():
            answer = self.waited({**body, "wait_ms": 1})
        else:
            answer = self.here.call("claim", "q", body)
        for op, (counts, skipped) in expected.items():
            assert answer[op] == {f"{op}ed": len(counts), "skipped": skipped}
        self.claimed(answer, worker, most)

    def waited(self, body: dict[str, Any]) -> Any:
        """The answer of a claim that waits until its time is over, or a lease ends at that moment."""
        ident = self.here.send("claim", "q", body)
        self.here.shard.flush()
        assert self.here.parked(ident)
        self.here.shard.commits.sync_now()
        self.here.clock.advance(1)
        self.here.shard.deliver()
        self.here.shard.commits.sync_now()
        reply = self.here.replies[ident]
        assert isinstance(reply, Reply)
        return msgspec.json.decode(reply.body)

    def refused_claim(self, body: dict[str, Any]) -> None:
        disk = self.here.disk
        assert isinstance(disk, FaultDisk)
        self.here.shard.commits.sync_now()
        disk.fail["write"] = OSError(EIO, "the model says so")
        reply = self.here.reply("claim", "q", body)
        del disk.fail["write"]
        assert reply.error is not None

    @rule(data=st.data(), op=st.sampled_from(["ack", "ack", "nack", "extend"]), delay=st.sampled_from([0, 700]))
    def use(self, data: st.DataObject, op: str, delay: int) -> None:
        """Any token that was ever issued: current, late, stale, or of a job that was acked."""
        if not self.old_tokens:
            return
        seq, worker, token = data.draw(st.sampled_from(self.old_tokens))
        fenced = data.draw(st.booleans())
        body: dict[str, Any] = {"node": worker, "seqs": [seq], "delay_ms": delay, "lease_ms": 2 * LEASE}
        if fenced:
            body["lease_ids"] = [token]
        counts = self.mine(seq, worker, token if fenced else None, op)
        answer = self.here.call(op, "q", body)
        assert answer["skipped"] == ([] if counts else [seq])
        if not counts:
            return
        if op != "extend":
            self.ended(seq, op, delay)
            return
        job = self.jobs[seq]
        job.until = answer["deadlines"][str(seq)]
        assert answer["lease_ids"] == {str(seq): job.token}
        assert job.until == self.now + 2 * LEASE
        self.changed = True

    @rule(ms=st.sampled_from([1, 300, LEASE, LEASE + 1]))
    def pass_time(self, ms: int) -> None:
        self.here.clock.advance(ms)

    @rule(silent=st.booleans())
    def bury(self, silent: bool) -> None:
        self.out.silent = silent
        self.carry(self.here, self.out)
        if not silent:
            for seq in self.doomed:
                job = self.jobs.pop(seq)
                self.dead[job.data] = job.deliveries
            self.buried += len(self.doomed)
            self.doomed.clear()

    @rule(most=st.integers(1, 3))
    def redrive(self, most: int) -> None:
        """Order a redrive. `come_home` handles the arrivals."""
        if self.dead:
            seqs = [(r["$seq"], r["data"]) for r in self.there.everything("dlq") if r["data"] not in self.homeward]
            ident = self.there.send("redrive", "dlq", {"queue": "q", "max": most})
            self.there.shard.commits.sync_now()
            assert (ident in self.there.replies) is (not seqs)
            self.homeward |= {data for _, data in seqs[:most]}

    @rule(silent=st.booleans())
    def come_home(self, silent: bool) -> None:
        self.back.silent = silent
        self.carry(self.there, self.back)
        known = {job.data for job in self.jobs.values()}
        for record in self.here.everything("q"):
            data = record["data"]
            if data in self.homeward and data not in known:
                self.jobs[record["$seq"]] = Job(data)
                assert "meta" not in record
        if not silent:
            for data in self.homeward:
                del self.dead[data]
            self.homeward.clear()

    @staticmethod
    def carry(shard: Harness, link: Link) -> None:
        shard.shard.commits.sync_now()
        for _ in range(3):
            finish(shard.shard.mover.carry(link))
            shard.shard.commits.sync_now()

    @rule(
        how=st.sampled_from(["kill", "kill", "power", "stop", "checkpoint"]), then=st.booleans(), seed=st.integers(0, 9)
    )
    def restart(self, how: str, then: bool, seed: int) -> None:
        if how in ("stop", "checkpoint"):
            for job in self.jobs.values():
                if job.delayed <= self.now or job.delayed != job.due:
                    job.due = -1  # its delay is over, and the log that had it may be trimmed
        if how == "stop":
            self.here.shard.close()
        elif how == "checkpoint":
            self.here.shard.commits.sync_now()
            self.here.shard.checkpoint_now()
            if not then:
                return
        elif self.durability == "disk" or (how == "power" and self.doomed):
            # This model leaves out what the machine's death may lose of this class, and of orders of dead letters.
            self.here.shard.commits.sync_now()
        self.here = revived(self.here, "drop" if how == "power" else "process", seed)
        if how != "stop" and self.changed and not self.durable:
            for seq, job in self.jobs.items():
                if seq not in self.doomed:
                    job.deliveries, job.holder, job.token, job.until = 0, "", "", -1
                    job.delayed, job.known = job.due, job.due >= 0
        self.changed = False

    @rule(how=st.sampled_from(["process", "drop"]), checkpoint=st.booleans(), seed=st.integers(0, 9))
    def restart_there(self, how: Survival, checkpoint: bool, seed: int) -> None:
        if checkpoint:
            self.there.shard.commits.sync_now()
            self.there.shard.checkpoint_now()
        self.there = revived(self.there, how, seed)

    @invariant()
    def counters_are_exact(self) -> None:
        if not hasattr(self, "here"):
            return
        state = self.here.call("state", "q")
        assert state["count"] == len(self.jobs)
        assert state["queue"].pop("waits_for", "not_ready") == "not_ready"  # a silent link
        assert state["queue"] == {
            "ready": len(self.claimable()),
            "in_flight": len(self.held()),
            "delayed": sum(
                job.delayed > self.now for seq, job in self.jobs.items() if seq not in self.doomed | set(self.held())
            ),
            "dead_lettering": len(self.doomed),
            "dead_lettered": self.buried,
        }
        assert sum(state["queue"].values()) == state["count"] + self.buried

    def teardown(self) -> None:
        if not hasattr(self, "here"):
            return
        self.come_home(silent=False)
        while self.jobs:
            self.here.clock.advance(2 * LEASE + 1)
            self.claim("last", 5)
            for seq in [s for s, j in self.jobs.items() if j.holder == "last" and s not in self.doomed]:
                self.here.call("ack", "q", {"node": "last", "seqs": [seq]})
                self.acked.add(self.jobs.pop(seq).data)
            self.bury(silent=False)
        assert self.here.everything("q") == []
        letters = self.there.everything("dlq")
        assert len(letters) == len(self.dead)
        assert {r["data"]: r["meta"]["$dead_letter_deliveries"] for r in letters} == self.dead
        assert self.acked | self.dead.keys() == self.produced
        assert not self.acked & self.dead.keys()


def finish(coroutine: Coroutine[Any, Any, Any]) -> None:
    """Run a coroutine that waits for nothing."""
    with pytest.raises(StopIteration):
        coroutine.send(None)


def revived(shard: Harness, survival: Survival, seed: int) -> Harness:
    disk = shard.disk
    assert isinstance(disk, FaultDisk)
    return shard.restarted(disk.after_crash(survival, seed))


def run(examples: int, steps: int) -> None:
    phases = list(Phase) if os.environ.get("TOPICS_TEST_SHRINK") else [Phase.explicit, Phase.generate]
    run_state_machine_as_test(
        QueueMachine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            phases=phases,
            suppress_health_check=[HealthCheck.too_slow],
        ),
    )


def test_every_job_ends_once_whoever_dies() -> None:
    run(60, 40)


@pytest.mark.long
def test_every_job_ends_once_whoever_dies_in_many_worlds() -> None:
    run(3000, 60)
