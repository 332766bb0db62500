"""JSON Lines: raw JSON is kept, batches depend on the file alone, and errors name the line."""

from __future__ import annotations

import json
import random
from typing import Any

import msgspec
import pytest

from supervisor.client.jsonlines import Batch, LineError, Note, batches, lines_of, note, page_of, parse

RAW = [
    b"1.0",
    b"1e3",
    b"123456789012345678901234567890",
    b'{"a":1,"a":2}',
    rb'"\ud83d\ude00 \u00e4 \n"',
    rb'"\ud800 \\ud800 \uDBFF\uDFFF"',
    rb'{"\udc00k":"a\ud83d"}',
    b"null",
    b'{"b":1,"a":[1.50,{"x":null}]}',
    '"ü"'.encode(),
]


def diff(records: list[bytes], **fields: Any) -> bytes:
    rest = {"next_from_seq": 9, "head_seq": 9, "caught_up": True, "tombstone": None, **fields}
    return b'{"topic":"a","records":[' + b",".join(records) + b"]," + json.dumps(rest).encode()[1:]


def run(raw: list[bytes], topic: str | None = None, chunk: int = 1000, first: int = 1, **options: Any) -> list[Any]:
    options = {"max_records": 1000, "max_bytes": 1 << 20, **options}
    chunks = [(first + at, raw[at : at + chunk]) for at in range(0, len(raw), chunk)]
    return list(batches(chunks, topic, **options))


def test_data_and_meta_come_and_go_as_they_were_written() -> None:
    page = page_of(
        diff([b'{"$seq":%d,"$ts":5,"$tag":"t","data":%b,"meta":{"m":%b}}' % (n, raw, raw) for n, raw in enumerate(RAW)])
    )
    lines = lines_of("a", page).splitlines()
    assert lines[0] == b'{"topic":"a","$seq":0,"$ts":5,"$tag":"t","data":1.0,"meta":{"m":1.0}}'
    (batch,) = run(lines)
    body = batch.body()
    wanted = b",".join(b'{"data":%b,"tag":"t","meta":{"m":%b}}' % (raw, raw) for raw in RAW)
    assert body.startswith(b'{"records":[' + wanted + b"]")


def test_line_breaks_between_tokens_do_not_break_lines() -> None:
    page = page_of(diff([b'{"$seq":1,"data":{\n"a" :\r\n 1}}']))
    lines = lines_of("a", page)
    assert lines.count(b"\n") == 1
    assert json.loads(lines)["data"] == {"a": 1}
    assert lines_of("a", page_of(diff([]))) == b""


def test_batches_are_the_same_wherever_chunks_end_and_behind_any_of_them() -> None:
    rng = random.Random(5)
    raw = []
    for _ in range(300):
        topic = rng.choice(["a", "a", "a", "b"]) if rng.random() < 0.1 or not raw else json.loads(raw[-1])["topic"]
        if rng.random() < 0.03:
            raw.append(note(topic, rng.choice(["$gap", "$topic"]), {"x": 1}))
        else:
            raw.append(json.dumps({"topic": topic, "data": "x" * rng.randrange(80)}).encode() + b"\n")
    options: dict[str, Any] = {"max_records": 20, "max_bytes": 900}
    whole = run(raw, **options)
    keys = [part.body() if isinstance(part, Batch) else part for part in whole]
    for chunk in (1, 2, 7, 19, 20, 21, 100, 299):
        again = run(raw, chunk=chunk, **options)
        assert [part.body() if isinstance(part, Batch) else part for part in again] == keys
    for at, part in enumerate(whole):
        last = part.last if isinstance(part, Batch) else part.number
        rest = run(raw[last:], first=last + 1, chunk=13, **options)
        assert [p.body() if isinstance(p, Batch) else p for p in rest] == keys[at + 1 :]
    assert [line for part in whole for line in range(part.number, getattr(part, "last", part.number) + 1)] == list(
        range(1, 301)
    )
    for part in whole:
        if isinstance(part, Batch):
            sizes = [len(line) for line in raw[part.number - 1 : part.last]]
            assert len(sizes) <= 20
            assert sum(sizes) <= 900 or len(sizes) == 1


def test_a_key_tells_place_and_content() -> None:
    def key(data: bytes, number: int) -> str:
        (batch,) = run([b'{"topic":"a","data":' + data + b"}"], first=number)
        found: str = json.loads(batch.body())["idempotency_key"]
        return found

    assert key(b"1", 5) == key(b"1", 5)
    assert len({key(b"1", 5), key(b"1", 6), key(b"1.0", 5)}) == 3


def test_lines_of_people_may_say_tag_and_go_where_they_are_told() -> None:
    (batch,) = run([b'{"data":1,"tag":"x","extra":[]}', b'{"topic":"b","data":2,"$tag":"y","$node":"n"}'], "t")
    assert batch.topic == "t"
    assert json.loads(batch.body())["records"] == [{"data": 1, "tag": "x"}, {"data": 2, "tag": "y", "node": "n"}]
    (batch,) = run([b"1.0\n", b'{"x":2}\n', b'"data"'], "t", whole=True)
    assert batch.body().startswith(b'{"records":[{"data":1.0},{"data":{"x":2}},{"data":"data"}]')


def test_notes_are_told_from_records() -> None:
    raw = [note("a", "$topic", {"config": {}}), b'{"topic":"a","data":1}', note("a", "$gap", {"gap_from": 2})]
    first, batch, last = run(raw)
    assert (first, last) == (Note("a", 1, "$topic", {"config": {}}), Note("a", 3, "$gap", {"gap_from": 2}))
    assert (batch.number, batch.last) == (2, 2)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b"", "line 2: Input data was truncated"),
        (b"{", "line 2: Input data was truncated"),
        (b'{"topic":"a","data":1},{"topic":"a","data":2}', "line 2: JSON is malformed"),
        (b'{"topic":"a","data":1}],[{"topic":"a"}', "line 2: JSON is malformed"),
        (b"[1]", "line 2: Expected `object`"),
        (b'{"topic":7,"data":1}', "line 2: Expected `str`"),
        (b'{"topic":"a"}', 'line 2: it has no "data"'),
        (b'{"data":1}', "line 2: it names no topic"),
    ],
)
def test_what_is_no_record_is_told_by_its_line(line: bytes, said: str) -> None:
    good = b'{"topic":"a","data":1}'
    with pytest.raises(LineError, match=said):
        run([good, line, good])


def test_values_that_go_over_lines_are_no_lines() -> None:
    with pytest.raises(LineError, match="line 1"):
        parse([b"1,2", b"[3", b"4]"], 1, whole=True)


def test_halves_have_keys_of_their_own() -> None:
    (batch,) = run([b'{"topic":"a","data":%d}' % n for n in range(5)])
    one, two = batch.halves()
    assert (one.number, one.last, two.number, two.last) == (1, 2, 3, 5)
    records = [msgspec.json.decode(half.body())["records"] for half in (one, two)]
    assert [record["data"] for half in records for record in half] == list(range(5))
