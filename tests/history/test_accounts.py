"""Claims about the accounts that bars keep beside a history: each finds the error that it is for."""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any, cast

import pytest

from tests.history.bar import Bar, Kills, Violation, await_ready
from tests.history.bars import missing
from tests.history.cuts import Cuts, Maker, Suffix
from tests.history.disks import longest_answer_s
from tests.history.jobs import ends
from tests.history.recording import Recording
from tests.support.histories import Story
from tests.support.pulse import Beat, beats, bound_ms, outside, unwell
from tests.support.service import Service
from topics_history import format as f

MS = 1_000_000


def jobs(tmp_path: Path, waiting: str = "", dead: str = "") -> Counter[str]:
    """Jobs a to d were published and e perhaps; a was completed, and b perhaps."""
    story = Story(t=f.Topic("queue"))
    story.append("a b c d", 1)
    story.append("e")
    story.claim("1:a:x 2:b:y 3:c:z")
    story.use(f.Ack, "1:x 3:z", skipped=(3,))
    story.use(f.Ack, "2:y", outcome="unknown")
    path = tmp_path / "history"
    path.write_bytes(story.written())
    return ends(path, "t", Counter(waiting.split()), Counter(dead.split()))


def test_each_job_has_one_end(tmp_path: Path) -> None:
    assert jobs(tmp_path, "c", "d") == {
        "completed": 1,
        "completed, as far as workers know": 1,
        "waiting": 1,
        "dead": 1,
        "never published": 1,
    }
    assert jobs(tmp_path, "b c e", "d")["waiting"] == 3


@pytest.mark.parametrize(
    ("waiting", "dead", "error"),
    [
        ("c", "", "d was published, and has no end"),
        ("c d", "d", "d has more than one end"),
        ("a c d", "", "a has more than one end"),
        ("c d d", "", "d has more than one end"),
        ("c d", "f", "f was not published"),
    ],
)
def test_a_job_that_is_lost_or_there_twice_is_found(tmp_path: Path, waiting: str, dead: str, error: str) -> None:
    with pytest.raises(Violation, match=error):
        jobs(tmp_path, waiting, dead)


def writer(cuts: list[int], **acked: tuple[int, int, int]) -> Suffix:
    found = Suffix(None, None, "w", 1, Cuts())  # type: ignore[arg-type]
    found._cuts.times_ns = [each * MS for each in cuts]
    found._acked = {int(seq[1:]): (number, start * MS, end * MS) for seq, (number, start, end) in acked.items()}
    found._unsure = {9}
    return found


SENT = {"s1": (1, 10, 20), "s2": (2, 30, 40), "s3": (3, 50, 60), "s4": (4, 110, 120)}


def test_a_cut_may_take_the_last_records_of_class_disk() -> None:
    account = writer([100], **SENT)
    account._compare({1: 1, 4: 4}, 1)
    assert (account.lost, account.oldest_lost_ms) == (2, 60)
    account._compare({1: 1, 4: 4, 5: 9}, 1)
    assert account._highest == 5


@pytest.mark.parametrize(
    ("cuts", "found", "error"),
    [
        ([], {1: 1, 2: 2, 4: 4}, "lost without a cut"),
        ([100], {1: 1, 2: 2, 3: 3}, "lost without a cut"),
        ([100], {1: 1, 3: 3, 4: 4}, "stay"),
        ([100], {1: 1, 2: 2, 3: 7, 4: 4}, "seq 3 is 7, and was 3"),
        ([100], {1: 1, 2: 2, 3: 3, 4: 4, 5: 5}, "had been lost"),
        ([5000], {1: 1}, "acknowledged 4960 ms before"),
    ],
)
def test_any_other_loss_is_found(cuts: list[int], found: dict[int, int], error: str) -> None:
    with pytest.raises(Violation, match=error):
        writer(cuts, **SENT)._compare(found, len(cuts))


def test_what_survived_a_cut_is_not_lost_at_the_next() -> None:
    account = writer([100, 200], **SENT)
    account._compare({1: 1, 2: 2, 3: 3, 4: 4}, 1)
    with pytest.raises(Violation, match="had survived a cut"):
        account._compare({1: 1, 2: 2}, 2)


class Silent:
    """A client that gets one status."""

    def __init__(self, status: int) -> None:
        self.status = status

    def ask(self, *_: Any) -> Any:
        return self


@pytest.mark.parametrize(("there", "status", "right"), [(True, 404, False), (False, 200, False), (None, 200, True)])
def test_a_topic_that_a_cut_brings_back_or_takes_is_found(there: bool | None, status: int, right: bool) -> None:
    maker = Maker(None, None, "m", 1, Cuts())  # type: ignore[arg-type]
    maker.client, maker.there = Silent(status), {"t": there}  # type: ignore[assignment]
    if right:
        maker.look("t")
        assert maker.there == {"t": True}
        return
    with pytest.raises(Violation, match="a cut undid it"):
        maker.look("t")


def test_the_longest_answer_is_that_of_a_request_and_no_stream(tmp_path: Path) -> None:
    story = Story()
    story.append("a", 1, at=(0, 30))
    story.append("b", at=(10, 70))
    story.open(t=0)
    story.frame("records", 1, "1:a", at=(72, 500))
    path = tmp_path / "history"
    path.write_bytes(story.written())
    assert longest_answer_s(path) == 0.06


def test_beats_while_the_service_is_down_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "pulse"
    path.write_text("10.0 5.0 0.1 200\n11.0 0.0 0.2 0\n12.0 900.0 0.1 200\n14.0 7.0 30.0 200\n15.0 8.0")
    found = beats(path)
    assert [beat.status for beat in found] == [200, 0, 200, 200]
    up = outside([(10.9, 11.1), (12.5, 13)], found)
    assert [beat.took_ms for beat in up] == [5, 7]
    assert bound_ms(up, 100) == 400


@pytest.mark.parametrize(
    ("beats", "wrong"),
    [
        ([Beat(n, 5, 0.1, 200) for n in range(200)], ""),
        ([Beat(n, 5, 0.1, 200) for n in range(199)] + [Beat(200, 90, 0.1, 200)], ""),
        ([], "was not asked"),
        ([Beat(n, 5, 0.1, 200) for n in range(199)] + [Beat(200, 0.2, 0.1, 0)], "no answer"),
        ([Beat(n, 5, 0.1, 200) for n in range(199)] + [Beat(200, 5, 0.1, 503)], "a refusal"),
        ([Beat(n, 120, 0.1, 200) for n in range(200)], "took 120 ms"),
        ([Beat(n, 120, 10, 200) for n in range(200)], ""),
        ([Beat(n, 5, 0.1, 200) for n in range(999)] + [Beat(1000, 9000, 0.1, 200)], "ms"),
    ],
    ids=["well", "one is slow", "none", "no answer", "refused", "slow", "a busy machine", "a silence of nine seconds"],
)
def test_a_pulse_is_well_if_each_beat_is_answered_in_time(beats: list[Beat], wrong: str) -> None:
    found = unwell(beats, 100)
    assert bool(found) == bool(wrong)
    assert wrong in found


@pytest.mark.parametrize(("kind", "lacking"), [(Bar, []), (Kills, ["faults"])])
def test_what_a_bar_is_about_and_never_happened_is_missing(tmp_path: Path, kind: type[Bar], lacking: list[str]) -> None:
    bar = kind(tmp_path, 1, 1.0)
    with closing(Recording(tmp_path / "history", bar.topics, [])) as recording:
        recording.done.update(set(f.OfTopic.__subclasses__()) - {f.Delete})
        recording.write(f.Delete, "c", 0, "failed", topic="p:disk", args=f.DeleteArgs(1))
        assert missing(bar, recording, 0) == ["Delete with success", *lacking]
        recording.write(f.Delete, "c", 0, "ok", topic="p:disk", args=f.DeleteArgs(1), result=f.Bounds(0, 1))
        assert missing(bar, recording, 0) == lacking
        assert missing(bar, recording, 1) == []


class Refusing:
    """A service of which one shard refuses its files. With `ended` it has given up, since all do."""

    def __init__(self, *, ended: bool) -> None:
        self._ended = ended
        self.process = self

    def poll(self) -> int | None:
        return 1 if self._ended else None

    def status(self) -> dict[str, Any]:
        return {"children": {"gateway": {"state": "serving"}, "shard-00": {"state": "held"}}} if not self._ended else {}

    def log_text(self) -> str:
        return "event=child_started\nevent=child_held reason=frame 7 is damaged\n"

    def is_ready(self) -> bool:
        return False


@pytest.mark.parametrize("ended", [False, True])
def test_a_shard_that_refuses_to_start_after_a_cut_is_found_at_once(ended: bool) -> None:
    with pytest.raises(Violation, match=r"Refused: .*frame 7 is damaged"):
        await_ready(cast(Service, Refusing(ended=ended)))
