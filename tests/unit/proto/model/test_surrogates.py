"""Lone surrogate escapes are kept byte for byte in records, and refused where a string is decoded."""

from __future__ import annotations

import json
from typing import Any

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import given
from msgspec import Raw, Struct

from gateway.protocols import rog, walrus
from proto.model.body import Form, parse
from proto.model.errors import TopicsError
from proto.model.surrogates import MAX_MASKED_BYTES, Mask, apply, decode, edit
from shardd.operations.append_request import _parse, has_at_most
from shardd.queues import dead_letter_meta
from shardd.routers.copy_plan import _without_stamp
from supervisor.client.jsonlines import Batch, LineError, batches, lines_of, page_of
from tests.support.harness import Harness
from tests.unit.shardd.queues.test_transfers import There, carry

TEXTS = [
    rb'"\ud800"',
    rb'{"\udc00k":"a\ud83d"}',
    rb'["\uDBFF\uD83D\uDE00","\\ud800","\\\ud800","\\\\uDfFf \uDfFf"]',
    rb'"\ud800\u0041 \udc00\ud800 \ud800\n\/\""',
    b'"\\ud800 ~u ~z ^u `u |u @u #u $u %u &u !u \x7fu \\u007f ~ \xc3\xa9"',
]
JSON_OF = msgspec.json.Decoder(list[Raw]).decode
CANDIDATES = "".join(f"{chr(c)}u{chr(c)}z\\\\u00{c:02x}" for c in b"\x7f~^`|@#$%&!")


class Record(Struct):
    data: Raw
    tag: str | None = None
    names: list[str] = []
    more: dict[str, Raw] = {}


read_record = msgspec.json.Decoder(Record).decode


class TestMask:
    @given(
        st.lists(
            st.sampled_from(
                [
                    "\\\\",
                    "\\u",
                    "\\ud800",
                    "\\uDC00",
                    "\\ud83d\\ude00",
                    "\\n",
                    "d800",
                    "u",
                    "~u",
                    "~",
                    "\x7fu",
                    "\x7fz",
                    "\x7f",
                    "\\u007f",
                    "\\u007Fu",
                    "\\",
                    "z",
                    "é",
                    CANDIDATES,
                ]
            ),
            max_size=30,
        ).map("".join)
    )
    def test_what_is_masked_comes_back(self, text: str) -> None:
        body = text.encode()
        try:
            mask = Mask(body)
        except msgspec.DecodeError:
            return  # no escape at all
        assert mask.undone(mask.text) == body

    @given(
        st.lists(
            st.sampled_from(
                [
                    "\\\\",
                    "\\ud800",
                    "\\uDC00",
                    "\\ud83d\\ude00",
                    "\\n",
                    "\\u00e9",
                    "\\u007f",
                    "\\u007e",
                    "u",
                    "z",
                    "~",
                    "\x7f",
                    "d800",
                    "\\u0075",
                    "\\u005c",
                    "\\u005Cud800",
                    '\\"',
                    CANDIDATES,
                ]
            ),
            max_size=20,
        ).map("".join)
    )
    def test_texts_are_kept_and_strings_are_what_they_say(self, text: str) -> None:
        body = f'{{"data":"{text}","tag":"{text}","more":{{"k{text}":"{text}"}}}}'.encode()
        wanted = json.loads(f'"{text}"')
        try:
            wanted.encode()
        except UnicodeEncodeError:
            with pytest.raises(TopicsError, match="lone surrogate"):
                decode(read_record, body)
        else:
            with_one = body[:-1] + rb',"names":[],"x":"\ud800"}'
            found = decode(read_record, with_one)
            assert (found.tag, list(found.more)) == (wanted, [f"k{wanted}"])
        whole, mask = apply(JSON_OF, b'["%b","\\udfff"]' % text.encode())
        assert mask is not None
        assert bytes(mask.restored(whole)[0]) == b'"%b"' % text.encode()

    @pytest.mark.parametrize("text", [rb'["\ud80"]', rb'["\ud800","\ud"]', rb'["\uDCxx"]', rb'["\ud800","\q"]'])
    def test_what_is_malformed_stays_so(self, text: bytes) -> None:
        with pytest.raises(msgspec.DecodeError, match="malformed"):
            decode(JSON_OF, text)
        with pytest.raises(TopicsError, match="the body is not JSON: JSON is malformed"):
            parse(JSON_OF, text)

    def test_what_needs_no_mask_gets_none(self) -> None:
        for text in (rb'["\ud83d\ude00"]', rb'["\\ud800"]', b"[1]"):
            assert apply(JSON_OF, text)[1] is None

    def test_a_body_with_one_has_a_bound_but_what_is_kept_has_none(self) -> None:
        text = b'["\\ud800","' + b"x" * MAX_MASKED_BYTES + b'"]'
        with pytest.raises(TopicsError, match=f"more than {MAX_MASKED_BYTES} bytes"):
            parse(JSON_OF, text)
        assert len(decode(JSON_OF, text)) == 2

    def test_names_of_ignored_fields_are_shown_as_they_were_spelt(self) -> None:
        found, ignored = Form(Record).read(rb'{"data":1,"\ud800x":2,"y":"\udc00"}')
        assert (bytes(found.data), ignored) == (b"1", [r"\ud800x", "y"])


@pytest.mark.parametrize("text", TEXTS)
class TestKept:
    def test_in_a_shard_over_a_checkpoint_and_a_restart(self, text: bytes) -> None:
        shard = Harness()
        shard.call("append", "a", b'{"records":[{"data":%b,"meta":{"m":%b},"tag":"t"}]}' % (text, text))
        wanted = b'"data":%b,"meta":{"m":%b}' % (text, text)
        assert wanted in shard.reply("diff", "a").body
        shard = shard.restarted()
        assert wanted in shard.reply("diff", "a").body
        shard.shard.checkpoint_now()
        assert wanted in shard.restarted().reply("diff", "a").body

    async def test_by_queues_and_dead_letters(self, text: bytes) -> None:
        here, there = Harness(), There(Harness())
        here.call("configure", "q", {"type": "queue", "max_deliveries": 1, "dead_letter": "dlq"})
        here.call("append", "q", b'{"records":[{"data":%b,"meta":{"m":%b}}]}' % (text, text))
        assert b'"data":%b' % text in here.reply("claim", "q", {"node": "w"}).body
        here.call("nack", "q", {"node": "w", "seqs": [1]})
        here.call("claim", "q", {"node": "w"})
        assert await carry(here, there)
        assert b'"data":%b,"meta":{"m":%b,"$dead' % (text, text) in there.shard.reply("diff", "dlq").body
        stamped = b'{"m":%b,"$dead_letter_from":"q"}' % text
        about: Any = (1, 0, msgspec.UNSET, msgspec.UNSET, Raw(text), Raw(stamped))
        assert dead_letter_meta.origin(about) == "q"
        assert b'"meta":{"m":%b}' % text in dead_letter_meta.body("q", [about], [0], {}, create=False)

    def test_by_routers(self, text: bytes) -> None:
        meta = b'{"_topics_router":1,"m":%b}' % text
        assert edit(_without_stamp, meta) == b'{"m":%b}' % text

    def test_by_export_and_import(self, text: bytes) -> None:
        page = page_of(
            b'{"records":[{"$seq":1,"$ts":2,"$tag":"t","data":%b,"meta":{"m":%b}}],"next_from_seq":2,"head_seq":1,'
            b'"caught_up":true,"tombstone":null}' % (text, text)
        )
        (batch,) = batches([(1, lines_of("a", page).splitlines())], None, max_records=9, max_bytes=1 << 20)
        assert isinstance(batch, Batch)
        assert b'{"data":%b,"tag":"t","meta":{"m":%b}}' % (text, text) in batch.body()
        (batch,) = batches([(1, [text])], "a", whole=True, max_records=9, max_bytes=1 << 20)
        assert isinstance(batch, Batch)
        assert b'{"data":%b}' % text in batch.body()

    def test_by_other_protocols(self, text: bytes) -> None:
        assert rog._message(text, rb'{"encoding":"base64","m":"\ud800"}') == text
        assert walrus._content(text) == text


def test_names_are_kept_where_members_are_taken_out() -> None:
    text = b'{"_topics_router":1,"\\udc00k~u":"\\\\","\\\\ud800":"%b \\ud800"}' % CANDIDATES.encode()
    assert edit(_without_stamp, text) == text.replace(b'"_topics_router":1,', b"")


def test_a_line_with_one_in_its_tag_is_named() -> None:
    lines = [rb'{"topic":"a","data":"\ud800"}', rb'{"topic":"a","data":1,"tag":"\ud800"}']
    with pytest.raises(LineError, match=r"line 2: .*lone surrogate"):
        list(batches([(1, lines)], None, max_records=9, max_bytes=1 << 20))


def test_as_many_records_are_counted() -> None:
    records = rb'{"data":"\ud800"}'
    assert has_at_most(b"[" + b",".join([records] * 5) + b"]", 5)
    assert not has_at_most(b"[" + b",".join([b"1", *[records] * 5]) + b"]", 5)
    assert has_at_most(b"[ ]", 1)
    body = b'{"records":[' + b",".join([records] * 9) + b"]}"
    with pytest.raises(TopicsError, match="more than 2 records"):
        _parse(body, 2, MAX_MASKED_BYTES)
    body = rb'{"records":[{"data":"\ud800","x":"' + rb"{\"data\"" * 90 + b'"}]}'
    assert bytes(_parse(body, 2, MAX_MASKED_BYTES)[0].records[0].data) == rb'"\ud800"'


def test_too_many_names_of_meta_are_counted() -> None:
    meta = b"{" + b",".join(rb'"\ud800%d":1' % n for n in range(65)) + b"}"
    with pytest.raises(TopicsError, match="more than 64 keys"):
        Harness().call("append", "a", b'{"records":[{"data":1,"meta":%b}]}' % meta)


def test_a_redelivered_letter_larger_than_a_body_may_be_is_moved() -> None:
    body = b'{"records":[{"data":"\\ud800' + b"x" * MAX_MASKED_BYTES + b'"}]}'
    shard = Harness(max_record_bytes=1 << 26)
    with pytest.raises(TopicsError, match="send it in parts"):
        shard.call("append", "a", body)
    shard.call("append", "a", body, stamped=True)
