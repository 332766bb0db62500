"""Bombs: writes with far more records than allowed. They cost little, and other writes are not affected."""

from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proto.ipc.message import Request
from proto.ipc.operations import Append
from proto.model.errors import ErrorCode, TopicsError
from proto.model.limits import Limits
from shardd.operations.append_request import has_at_most, most_records, parse_write
from tests.support.lines import lines_of

LIMITS = Limits(max_batch_records=10_000)
SMALL = Limits(max_batch_records=2)
TINY = b'{"data":1}'
SPELLED = rb'{"d\u0061ta":1}'


def batch(records: list[bytes], before: bytes = b"", after: bytes = b"") -> bytes:
    return b'{%b"records":[%b]%b}' % (before, b",".join(records), after)


def asking(body: bytes) -> Request:
    return Request(1, Append(), "a", body)


def refusal(body: bytes, limits: Limits = LIMITS) -> ErrorCode:
    with pytest.raises(TopicsError) as caught:
        parse_write(asking(body), limits)
    return caught.value.code


@pytest.mark.parametrize("record", [TINY, SPELLED, b' { "data" :\n1 } ', b'{"data":{"data":[{"data":1}]}}'])
def test_a_million_tiny_records_are_refused_before_they_are_built(record: bytes) -> None:
    body = batch([record] * 1_000_000)
    tracemalloc.start()
    code = refusal(body)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert code is ErrorCode.BATCH_TOO_LARGE
    assert most < 2.5 * len(body)
    assert lines_of(lambda: refusal(body)) < 200_000  # a few for each of the records that are allowed


def test_records_given_twice_are_not_built_either() -> None:
    body = batch([TINY] * 1_000_000, after=b',"records":[{"data":2}]')
    tracemalloc.start()
    write = parse_write(asking(body), LIMITS).asked
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert [bytes(each.data) for each in write.records] == [b"2"]
    assert most < 2.5 * len(body)


def test_a_write_within_the_limit_that_looks_like_more_is_taken_as_it_is() -> None:
    nested = b'{"data":[%b],"tag":"t"}' % b",".join([TINY] * 100)
    parsed = parse_write(asking(batch([nested, TINY], b'"node":"n",', b',"idempotency_key":"k","create":true')), SMALL)
    write = parsed.asked
    assert most_records(batch([nested, TINY])) > 4 * SMALL.max_batch_records
    assert parsed.columns.count == 2
    assert (write.node, write.idempotency_key, write.create) == ("n", "k", True)
    assert refusal(batch([nested] * 3), SMALL) is ErrorCode.BATCH_TOO_LARGE


@pytest.mark.parametrize("records", [b"{}", b"7", b"null", b'"[]"', b"[1]", b"[{}]", b'[{"data":1},7]'])
def test_what_is_no_list_of_records_is_told_as_ever(records: bytes) -> None:
    body = b'{"records":%b,"more":[%b]}' % (records, b",".join([TINY] * 100))
    assert refusal(body, SMALL) is ErrorCode.INVALID_REQUEST


JSON = st.recursive(
    st.sampled_from([b"1", b"null", b'"a,b]"', b'"\\""', rb'"\u005d"', b"[]", b"{}", b"-1.5e3"]),
    lambda inner: (
        st.lists(inner, max_size=4).map(lambda each: b"[%b]" % b" , ".join(each))
        | st.lists(inner, max_size=4).map(lambda each: b"{%b}" % b",".join(b'"k": ' + one for one in each))
    ),
    max_leaves=8,
)


@given(st.lists(JSON, max_size=12), st.integers(1, 12), st.sampled_from([b",", b" ,\n", b"\t,  "]))
def test_counting_without_building_is_exact(values: list[bytes], most: int, comma: bytes) -> None:
    for array in (b"[%b]" % comma.join(values), b"[ %b\n]" % comma.join(values)):
        assert has_at_most(array, most) == (len(values) <= most)


SPELLINGS = [b"data", rb"d\u0061ta", rb"\u0064ata", rb"da\u0074a", rb"\u0064\u0061\u0074\u0061"]


@given(st.lists(st.sampled_from(SPELLINGS), max_size=9))
def test_no_write_has_more_records_than_is_reckoned(names: list[bytes]) -> None:
    assert most_records(batch([b'{"%b":1}' % name for name in names])) >= len(names)


@pytest.mark.parametrize("text", ["é", "€", "😀"])
def test_utf8_that_is_broken_is_found_wherever_a_large_body_has_it(text: str) -> None:
    for before in range((1 << 20) - 30, (1 << 20) - 10):
        whole = b'{"records":[{"data":"%b%b"}]}' % (b"x" * before, text.encode())
        parse_write(asking(whole), Limits(max_record_bytes=2 << 20))
        broken = whole.replace(text.encode(), text.encode()[:-1])
        assert refusal(broken) is ErrorCode.INVALID_REQUEST
