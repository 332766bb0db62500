"""Claims about the format: a damaged or truncated file is an error with its line, never a verdict."""

from __future__ import annotations

import hashlib
import io
import json
import random
from typing import Any

import pytest

from tests.support.histories import Story, play
from topics_history.checker import check_reader
from topics_history.format import Ack, Append, AppendArgs, HistoryError, Reader, Topic, Writer


def story() -> Story:
    told = Story()
    told.append("a b", 1)
    told.read("1:a 2:b")
    told.open(t=0)
    return told


def check(content: bytes) -> Any:
    return check_reader(Reader(io.BytesIO(content)))


def refused(content: bytes) -> HistoryError:
    with pytest.raises(HistoryError) as caught:
        check(content)
    return caught.value


def test_a_whole_history_is_read_as_it_was_written() -> None:
    told = story()
    assert list(Reader(io.BytesIO(told.written()))) == told.operations
    assert check(told.written()).operations == 3


def test_a_history_that_is_cut_at_any_byte_is_refused() -> None:
    content = story().written()
    for length in range(len(content)):
        assert refused(content[:length]).line == content[:length].count(b"\n") + 1


def test_any_changed_byte_is_refused() -> None:
    content = story().written()
    rng = random.Random(1)
    for at in range(len(content)):
        changed = bytearray(content)
        changed[at] ^= 1 << rng.randrange(8)
        refused(bytes(changed))


def test_lines_that_are_missing_doubled_or_swapped_are_refused() -> None:
    header, *lines, end = story().written().splitlines(keepends=True)
    for wrong in (lines[1:], [*lines, lines[-1]], [lines[1], lines[0], lines[2]]):
        refused(b"".join([header, *wrong, end]))


def test_nothing_may_follow_the_end() -> None:
    assert str(refused(story().written() + b"\n")) == "line 6: there is something after the end"


def unsealed(**changes: Any) -> HistoryError:
    """A history with one wrong append, written with a right end."""
    operation = Append(
        client="c",
        start_ns=changes.pop("start_ns", 5),
        end_ns=changes.pop("end_ns", 6),
        outcome=changes.pop("outcome", "unknown"),
        topic=changes.pop("topic", "t"),
        args=AppendArgs(**({"bodies": ["a"]} | changes)),
    )
    file = io.BytesIO()
    writer = Writer(file, {"t": Topic()})
    writer.write(operation)
    writer.close()
    return refused(file.getvalue())


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"start_ns": 7}, "ends before it starts"),
        ({"outcome": "ok"}, "has a result if"),
        ({"topic": "u"}, "u is not in the topics"),
        ({"tags": ["x", "y"]}, "as many tags as bodies"),
        ({"bodies": ["a", "a"]}, "the same body"),
        ({"bodies": []}, "length >= 1"),
        ({"start_ns": -1}, ">= 0"),
        ({"end_ns": 2**63}, "<= 9223372036854775807"),
        ({"outcome": "perhaps"}, "Invalid enum value"),
    ],
)
def test_an_operation_that_makes_no_sense_is_refused_with_its_line(changes: dict[str, Any], said: str) -> None:
    error = unsealed(**changes)
    assert error.line == 2
    assert said in str(error)


def test_lines_are_in_the_order_of_their_ends() -> None:
    told = story()
    file = io.BytesIO()
    writer = Writer(file, told.topics)
    for operation in reversed(told.operations):
        writer.write(operation)
    writer.close()
    assert refused(file.getvalue()).line == 3


def test_a_header_of_another_version_or_with_unknown_topics_of_routers_is_refused() -> None:
    header, *rest = story().written().splitlines(keepends=True)
    for change in ({"version": 2}, {"format": "other"}, {"routers": [{"source": "t", "dest": "u"}]}, {"more": 1}):
        wrong = json.dumps(json.loads(header) | change).encode() + b"\n"
        assert refused(b"".join([wrong, *rest])).line == 1
    assert refused(b"").line == 1


def test_a_body_names_one_record_and_a_key_one_append() -> None:
    told = Story()
    told.append("a", 1)
    told.append("b a", 2)
    assert refused(told.written()).line == 3
    told = Story()
    told.append("a", 1, key="k")
    told.append("b", 1, key="k")
    assert refused(told.written()).line == 3


def test_a_stream_or_an_ack_that_cannot_be_is_refused() -> None:
    told = Story()
    told.open(u=0)
    assert refused(told.written()).line == 2
    told = Story(t=Topic("queue"))
    told.use(Ack, "1:x 1:y")
    assert refused(told.written()).line == 2


def test_no_bent_history_ends_in_anything_but_a_verdict_or_an_error() -> None:
    """Lines of a real history with one value replaced, written with a right end."""
    rng = random.Random(2)
    lines = [json.loads(line) for line in play(3, 120).written().splitlines()[1:-1]]
    topics = play(3, 1).topics
    refusals = []
    for _ in range(300):
        bent = json.loads(json.dumps(rng.choice(lines)))
        spot, key = bent, rng.choice(list(bent))
        while isinstance(spot[key], dict) and spot[key]:
            spot, key = spot[key], rng.choice(list(spot[key]))
        spot[key] = rng.choice([None, 0, -1, 2**63 - 1, 2**63, 2**64, "", "x", [], [1], [[1, "x"]], {}, True, 1.5])
        content = io.BytesIO()
        Writer(content, topics)
        content.write(json.dumps(bent).encode() + b"\n")
        digest = hashlib.sha256(content.getvalue()).hexdigest()
        content.write(json.dumps({"op": "end", "operations": 1, "sha256": digest}).encode() + b"\n")
        try:
            check(content.getvalue())
        except HistoryError as error:
            refusals.append(error.line)
    assert set(refusals) == {2}
