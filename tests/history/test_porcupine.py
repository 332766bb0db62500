"""Claims about the checker beside porcupine, which searches for an order in which all answers are right.

Small random histories of one log, right ones and bent ones: appends, reads of everything, heads. Both must give the
same verdict of each. The last operation is a read of everything that begins after all others: a head that no record
ever reaches is judged by it alone.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.support.histories import Story
from tests.support.programs import leave_out, tool
from topics_history import format as f

HERE = Path(__file__).parent / "porcupine"
HISTORIES = 2000


def small(rng: random.Random) -> Story:
    """A history of a log that keeps its promises, in which some outcomes are unknown."""
    story = Story()
    log: list[str] = []
    moments: list[tuple[int, int, int]] = []
    for _ in range(rng.randrange(1, 5)):
        now = rng.randrange(5)
        for _ in range(rng.randrange(1, 6)):
            start, effect, end = now, now + rng.randrange(1, 6), now + rng.randrange(6, 12)
            moments.append((effect, start, end))
            now = end + rng.randrange(1, 4)
    for number, (_, start, end) in enumerate(sorted(moments)):
        at, draw = (start, end), rng.random()
        if draw < 0.5:
            bodies = [f"r{number}-{n}" for n in range(rng.choice((1, 1, 2, 3)))]
            outcome = rng.choices(("ok", "unknown", "failed"), (6, 2, 1))[0]
            first = len(log) + 1
            if outcome == "ok" or (outcome == "unknown" and rng.random() < 0.5):
                log += bodies
            story.append(" ".join(bodies), first if outcome == "ok" else 0, at=at, outcome=outcome)
        elif draw < 0.8:
            _read(story, log, at)
        else:
            story.state(len(log), at=at)
    _read(story, log, None)
    return story


def _read(story: Story, log: list[str], at: tuple[int, int] | None) -> None:
    records = " ".join(f"{seq}:{body}" for seq, body in enumerate(log, 1))
    story.read(records, head=len(log), caught_up=True, at=at)


def bend(story: Story, rng: random.Random) -> None:
    """Change one thing: a time, an outcome, a seq, a head, a record. The history may be right all the same."""
    each = rng.choice(story.operations[:-1] or story.operations)
    result = each.result
    draw = rng.randrange(7)
    if draw == 0:
        each.start_ns = min(each.end_ns, max(0, each.start_ns + rng.randrange(-8, 9) * 1_000_000))
    elif draw == 1 and each is not story.operations[-1]:
        last_ns = story.operations[-1].start_ns - 1
        each.end_ns = min(last_ns, max(each.start_ns, each.end_ns + rng.randrange(-8, 9) * 1_000_000))
    elif draw == 2 and isinstance(each, f.Append):
        each.outcome = rng.choice(("failed", "unknown"))
        each.result = None
    elif draw == 3 and isinstance(each, f.Append) and result is not None:
        result.first_seq = max(1, result.first_seq + rng.choice((-2, -1, 1, 2)))
        result.last_seq = result.head_seq = result.first_seq + len(each.args.bodies) - 1
    elif draw == 4 and isinstance(each, f.GetState):
        result.head_seq = max(0, result.head_seq + rng.choice((-1, 1)))
    elif draw == 5 and isinstance(each, f.Read) and result.records:
        _recount(each, result.records[: rng.randrange(len(result.records))])
    elif draw == 6 and isinstance(each, f.Read) and len(result.records) > 1:
        at = rng.randrange(len(result.records) - 1)
        bodies = [body for _, body in result.records]
        bodies[at], bodies[at + 1] = bodies[at + 1], bodies[at]
        _recount(each, list(enumerate(bodies, 1)))


def _recount(read: Any, records: list[tuple[int, str]]) -> None:
    read.result.records = records
    read.result.next_from_seq = read.result.head_seq = len(records)


def as_porcupine(story: Story) -> str:
    found = []
    for number, each in enumerate(story.operations):
        if each.outcome == "failed":
            continue
        told: dict[str, Any] = {"Client": number, "Call": each.start_ns, "Return": each.end_ns}
        if isinstance(each, f.Append):
            told |= {"Kind": "append", "Bodies": each.args.bodies, "First": each.result.first_seq if each.result else 0}
            told["Return"] = each.end_ns if each.result else -1
        elif isinstance(each, f.Read):
            told |= {"Kind": "read", "Bodies": [body for _, body in each.result.records], "Head": each.result.head_seq}
        else:
            told |= {"Kind": "state", "Head": each.result.head_seq}
        found.append(told)
    return json.dumps(found)


def porcupine(directory: Path, stories: list[Story]) -> list[bool]:
    """The verdicts of porcupine. Without Go, or the module, the test is left out."""
    go = shutil.which("go", path=os.environ.get("PATH", "") + ":/usr/local/go/bin") or tool("go")
    built = subprocess.run(
        [go, "build", "-o", directory / "porcupine", "."], cwd=HERE, capture_output=True, text=True, check=False
    )
    if built.returncode:
        leave_out(f"the Go module porcupine ({built.stderr.splitlines()[-1]})")
    lines = "".join(as_porcupine(story) + "\n" for story in stories)
    done = subprocess.run([directory / "porcupine"], input=lines, capture_output=True, text=True, check=True)
    return [line == "true" for line in done.stdout.split()]


@pytest.mark.long
def test_the_checker_and_porcupine_give_the_same_verdicts(tmp_path: Path) -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")  # noqa: T201 - shown when the test fails
    rng = random.Random(seed)
    stories = [small(rng) for _ in range(HISTORIES)]
    for story in stories[HISTORIES // 4 :]:
        for _ in range(rng.randrange(1, 6)):
            bend(story, rng)
    verdicts = porcupine(tmp_path, stories)
    assert all(verdicts[: HISTORIES // 4]), "porcupine refuses a history of a log that keeps its promises"
    assert min(verdicts.count(True), verdicts.count(False)) > HISTORIES / 10, "the histories say nothing"
    ours = [not story.check().counts for story in stories]
    differ = [n for n in range(HISTORIES) if ours[n] != verdicts[n]]
    assert not differ, (len(differ), ours[differ[0]], stories[differ[0]].kinds(), as_porcupine(stories[differ[0]]))
