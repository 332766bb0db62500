"""The mutants: each an error that a product of this kind has had, the bar that must find it, and by which promises.

An edit replaces one text that a file of the product has once. A change of the product that removes the text has to
move the mutant with it: `tests/unit/test_mutants.py` says so.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from tests.history.bars import CLIENTS
from tests.support.releases import PACKAGES

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True)
class Edit:
    path: str
    old: str
    new: str

    def applied(self, source: str) -> str:
        count = source.count(self.old)
        assert count == 1, f"{self.path} has the text of a mutant {count} times:\n{self.old}"
        return source.replace(self.old, self.new)


@dataclass(frozen=True, slots=True)
class Mutant:
    name: str
    bar: int
    promises: tuple[str, ...]
    """Those that it breaks, as `topics_history.violations` and the bar name them."""
    edits: tuple[Edit, ...]
    seed: int = 1
    """That of its first run. Faults of bars 10 and 13 take ten seconds, so the first one is to be one that shows the
    mutant."""
    clients: int = CLIENTS
    """More, where only a request shows it that is under way when a fault comes."""


MUTANTS = (
    Mutant(
        "a write is answered before its sync",
        3,
        ("Lost", "Changed", "HeadBack", "Undone"),
        (
            Edit(
                "shardd/storage/group_commit.py",
                "                if not change.requires_sync or change",
                "                if True or change",
            ),
        ),
    ),
    Mutant(
        "a deletion takes one record more",
        1,
        ("Lost", "Hole"),
        (Edit("shardd/topic/records.py", "else min(bound, before_seq)\n", "else min(bound, before_seq + 1)\n"),),
    ),
    Mutant(
        "an ack needs no lease",
        6,
        ("StaleLease", "AckedTwice"),
        (
            Edit(
                "shardd/topic/job_table.py",
                "        if job is None or job.state not in _ACK or not job.node or job.node != node:\n"
                "            return None\n        return job if token in (None, job.token) else None\n",
                "        return None if job is None or job.state not in _ACK else job\n",
            ),
        ),
    ),
    Mutant(
        "idempotency keys are forgotten at a restart",
        7,
        ("Doubled",),
        (
            Edit("shardd/recovery/replay.py", "    elif columns.key:\n", "    elif False:\n"),
            Edit(
                "shardd/checkpoint/snapshot.py", "lambda topic, keys: topic.keys.load(keys)", "lambda topic, keys: None"
            ),
        ),
    ),
    Mutant(
        "a stream skips records when it becomes live",
        1,
        ("Hole", "Lost", "Repeated"),
        (
            Edit("gateway/streams/topic_feed.py", " or feed.seq > member.seq:\n", ":\n"),
            Edit(
                "gateway/streams/subscription.py",
                "        if batch.from_seq == self.seq:\n",
                "        if batch.to_seq > self.seq:\n",
            ),
        ),
    ),
    Mutant(
        "a tombstone is one seq short",
        1,
        ("Hole", "NotAPiece", "Lost"),
        (
            Edit(
                "shardd/delivery/diff.py",
                "gap_from, gap_to = from_seq + 1, earliest - 1\n",
                "gap_from, gap_to = from_seq + 1, earliest - 2\n",
            ),
        ),
    ),
    Mutant(
        "a cursor goes back",
        1,
        ("CursorBack",),
        (
            Edit(
                "shardd/frames.py",
                "moved(current, self.seq, self.force, self.ts,",
                "moved(current, self.seq, True, self.ts,",
            ),
        ),
    ),
    Mutant(
        "a stream that returns ignores the id of its last frame",
        8,
        ("Lost", "Hole"),
        (
            Edit(
                "gateway/streams/event_ids.py",
                "        elif seq is not None and 0 <= seq < position.seq:\n",
                "        elif seq is not None and seq < 0:\n",
            ),
        ),
    ),
    Mutant(
        "a stream says caught-up before it has read everything",
        8,
        ("EarlyCaughtUp",),
        (Edit("gateway/streams/subscription.py", "        if batch.to_seq >= head:\n", "        if True:\n"),),
    ),
    Mutant(
        "a failed sync is taken for a good one",
        9,
        ("Lost", "Refused"),
        (
            Edit(
                "shardd/storage/group_commit.py",
                "            error = caught\n        self._under_way = None\n",
                "            pass\n        self._under_way = None\n",
            ),
        ),
    ),
    Mutant(
        "a failed sync is asked again",
        9,
        ("Lost", "Refused"),
        (
            Edit(
                "shardd/storage/wal.py",
                "    def run(self) -> None:\n        self.file.sync()\n",
                "    def run(self) -> None:\n        try:\n            self.file.sync()\n        except OSError:\n"
                "            self.file.sync()\n",
            ),
        ),
    ),
    Mutant(
        "a machine answers although its term was not renewed",
        10,
        ("TwoAnswer", "StaleHead", "HeadBack"),
        (
            Edit(
                "shardd/replication/protocol.py",
                " and self._answers_until is not None and now < self._answers_until\n",
                "\n",
            ),
        ),
        seed=57,
    ),
    Mutant(
        "a change is acknowledged before the bucket has it",
        10,
        ("Lost", "Changed"),
        (
            Edit(
                "shardd/storage/group_commit.py",
                "        return self._shipped_no if self._shipped_no >= last else min(self._shipped_no, before)\n",
                "        return self._wal.synced_no\n",
            ),
        ),
        seed=57,
    ),
    Mutant(
        "a request whose outcome is unknown is sent to the next holder",
        13,
        ("Doubled", "FailedPresent"),
        (
            Edit(
                "gateway/shards/client.py",
                'error.detail.get("outcome") == "not_done"\n',
                'error.detail.get("outcome") in ("not_done", "unknown")\n',
            ),
        ),
        seed=31,
        clients=32,
    ),
    Mutant(
        "the wall clock is trusted",
        12,
        ("EarlyExpiry", "CameEarly"),
        (Edit("shardd/clock.py", "CONFIRM_S = 300.0\n", "CONFIRM_S = 0.0\n"),),
    ),
)


def made(mutant: Mutant, directory: Path) -> Path:
    """Copy the packages of the service into a directory, with the error in them."""
    for package in PACKAGES:
        shutil.copytree(ROOT / package, directory / package, ignore=shutil.ignore_patterns("__pycache__"))
    for edit in mutant.edits:
        path = directory / edit.path
        path.write_text(edit.applied(path.read_text()))
    return directory
