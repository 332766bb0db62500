"""Members of JSON objects come back as they were written."""

from __future__ import annotations

import pyarrow as pa
import pytest

from pyspark_topics.members import headers, members


def test_headers_are_the_members_of_meta_as_they_were_written() -> None:
    metas = [
        None,
        b"{}",
        b'{"a":1.0,"b":"x\\"}","c":{"d":[1e3,{}]},"a":null}',
        b' { "k" : 123456789012345678901234567890 , "l":true } ',
        '{"ü":"ß"}'.encode(),
        rb'{"m\ud800":"\ud800"}',
        rb'{ "\ud83d\ude00" : 1, "\udc00\n\"" : 2}',
        b"{}",
    ]
    got = headers(pa.array(metas, pa.binary())).to_pylist()
    assert [row if row is None else [(h["key"], h["value"]) for h in row] for row in got] == [
        None,
        [],
        [("a", b"1.0"), ("b", b'"x\\"}"'), ("c", b'{"d":[1e3,{}]}'), ("a", b"null")],
        [("k", b"123456789012345678901234567890"), ("l", b"true")],
        [("ü", '"ß"'.encode())],
        [("m\\ud800", rb'"\ud800"')],
        [("😀", b"1"), (r"\udc00\n\"", b"2")],
        [],
    ]
    huge = b'{"n":' + b"7" * 10_000 + b"}"
    assert headers(pa.array([huge], pa.binary())).to_pylist()[0][0]["value"] == b"7" * 10_000


@pytest.mark.parametrize("text", ["", "[]", "1", "{", '{"a":1', '{"a":1} x', '{"a":}', '{"a"}'])
def test_what_is_no_object_has_no_members(text: str) -> None:
    with pytest.raises(ValueError, match="object"):
        members(text)


def test_a_value_of_any_depth_is_a_member() -> None:
    deep = "[" * 5000 + "]" * 5000
    assert members(f'{{"a":{deep}, "b" : "}}"}}') == [("a", deep), ("b", '"}"')]
