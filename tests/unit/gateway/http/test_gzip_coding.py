"""Claims about gzip: compression of responses, decompression of bodies."""

import gzip
import tracemalloc

import pytest

from gateway.api.bodies import MAX_PARAMETERS_BYTES
from gateway.http.gzip_coding import IN_THREAD, MAX_MEMBERS, SMALLEST_ANSWER, accepts_gzip, deflate, inflate
from proto.ipc.message import Message, Reply, Request
from proto.model.errors import ErrorCode, TopicsError
from tests.support.gateway_stage import stage

PACKED = {"Content-Encoding": "gzip"}
ASKED = {"Accept-Encoding": "gzip"}


def code_of(body: bytes, limit: int) -> ErrorCode:
    with pytest.raises(TopicsError) as caught:
        inflate(body, limit)
    return caught.value.code


@pytest.mark.parametrize("size", [0, 1, 1000, 1 << 20])
def test_what_is_deflated_inflates_to_the_same(size: int) -> None:
    plain = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
    assert gzip.decompress(deflate(plain)) == plain
    assert inflate(gzip.compress(plain), size) == plain


def test_members_one_after_the_other_are_one_body() -> None:
    assert inflate(gzip.compress(b"[1,") + gzip.compress(b"") + gzip.compress(b"2]"), 5) == b"[1,2]"
    assert inflate(gzip.compress(b"") * MAX_MEMBERS, 0) == b""
    assert code_of(gzip.compress(b"") * (MAX_MEMBERS + 1), 0) is ErrorCode.INVALID_REQUEST


def test_the_limit_is_exact_over_all_members() -> None:
    body = gzip.compress(b"x" * 60) + gzip.compress(b"x" * 40)
    assert len(inflate(body, 100)) == 100
    assert code_of(body, 99) is ErrorCode.PAYLOAD_TOO_LARGE
    assert code_of(body, 60) is ErrorCode.PAYLOAD_TOO_LARGE


def test_a_bomb_is_not_inflated_beyond_the_limit() -> None:
    bomb = gzip.compress(b"\0" * (64 << 20))
    limit = 1 << 20
    tracemalloc.start()
    try:
        assert code_of(bomb, limit) is ErrorCode.PAYLOAD_TOO_LARGE
        assert tracemalloc.get_traced_memory()[1] < 4 * limit
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("cut", range(1, len(gzip.compress(b"{}"))))
def test_a_cut_body_is_400(cut: int) -> None:
    assert code_of(gzip.compress(b"{}")[:-cut], 100) is ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize("at", [0, 2, -1, -5, -8])
def test_a_damaged_body_is_400(at: int) -> None:
    body = bytearray(gzip.compress(b"hello hello hello"))
    body[at] ^= 0xFF
    assert code_of(bytes(body), 100) is ErrorCode.INVALID_REQUEST


def test_bytes_behind_a_body_are_400() -> None:
    assert code_of(gzip.compress(b"{}") + b"rest", 100) is ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize(
    ("header", "wanted"),
    [
        (b"", False),
        (b"identity", False),
        (b"br, deflate", False),
        (b"gzip", True),
        (b"GZIP", True),
        (b"x-gzip", True),
        (b"deflate, gzip;q=0.5, br", True),
        (b"gzip ; q=0.001", True),
        (b"gzip;q=0", False),
        (b"gzip;q=0.000", False),
        (b"*", True),
        (b"*;q=0", False),
        (b"gzip;q=0, *", False),
        (b"*;q=0, gzip", True),
        (b"identity;q=0.5, gzip;q=1.0", True),
        (b"gzip;q=0.5, identity", False),
        (b"gzip;q=0.5, identity;q=0.5", True),
        (b"identity;q=0", False),
        (b"gzip;q=2", False),
        (b"gzip;q=nan", False),
        (b"gzip;q=-1", False),
        (b"gzip;q=", False),
        (b",,;q=1,", False),
    ],
)
def test_answers_are_compressed_only_for_who_wants_it(header: bytes, wanted: bool) -> None:
    assert accepts_gzip(header) is wanted


@pytest.mark.parametrize("size", [10, 10_000, 1_000_000])
async def test_the_shard_gets_the_body_as_it_was_before_it_was_compressed(size: int) -> None:
    body = b'{"records":[{"data":"%s"}]}' % (b"x" * size)
    async with stage() as there, there.client() as client:
        assert (await client.ask("POST", "/v0/topics/a", gzip.compress(body), PACKED)).status == 200
        assert there.shards[0].requests[0].body == body


async def test_the_size_of_a_body_counts_before_and_after_it_is_inflated() -> None:
    async with stage(max_body_bytes=2000) as there, there.client() as client:
        answer = await client.ask("POST", "/v0/topics/a", gzip.compress(b" " * 2001), PACKED)
        assert (answer.status, answer.code) == (413, "payload_too_large")
        assert answer.json["error"]["detail"] == {"max_body_bytes": 2000}
        assert (await client.ask("POST", "/v0/topics/a", gzip.compress(b" " * 2000), PACKED)).status == 200
    async with stage(max_body_bytes=2000) as there, there.client() as client:
        assert (await client.ask("POST", "/v0/topics/a", b"x" * 2001, PACKED)).code == "payload_too_large"


async def test_bodies_without_records_may_inflate_to_less() -> None:
    large = gzip.compress(b" " * (MAX_PARAMETERS_BYTES + 1))
    async with stage() as there, there.client() as client:
        for method, path in (
            ("POST", "/v0/topics/a/diff"),
            ("POST", "/v0/topics/a/delete"),
            ("PUT", "/v0/topics/a/cursors/c"),
        ):
            assert (await client.ask(method, path, large, PACKED)).code == "payload_too_large"
        assert not there.shards[0].requests


async def test_a_broken_body_is_400_and_the_connection_stays() -> None:
    async with stage() as there, there.client() as client:
        for body in (b"no gzip", gzip.compress(b"{}")[:-3]):
            answer = await client.ask("POST", "/v0/topics/a", body, PACKED)
            assert (answer.status, answer.code) == (400, "invalid_request")
        assert (await client.ask("POST", "/v0/topics/a", b"{}")).status == 200
        assert len(there.shards[0].requests) == 1


@pytest.mark.parametrize("coding", ["br", "deflate", "gzip, gzip", "zstd"])
async def test_other_codings_are_415_and_name_what_is_understood(coding: str) -> None:
    async with stage() as there, there.client() as client:
        answer = await client.ask("POST", "/v0/topics/a", b"{}", {"Content-Encoding": coding})
        assert (answer.status, answer.code) == (415, "unsupported_media_type")
        assert "gzip" in answer.json["error"]["message"]


def answering(size: int) -> bytes:
    """A JSON object of about `size` bytes."""
    return b'{"data":"%s"}' % (b"x" * size)


@pytest.mark.parametrize("size", [SMALLEST_ANSWER, IN_THREAD * 2])
async def test_an_answer_says_how_it_was_compressed_and_what_that_depended_on(size: int) -> None:
    def script(request: Request) -> list[Message]:
        return [Reply(request.id, answering(size))]

    async with stage(script) as there, there.client() as client:
        plain = await client.ask("GET", "/v0/topics/a")
        assert "content-encoding" not in plain.headers
        assert plain.headers["vary"] == "accept-encoding"
        packed = await client.ask("GET", "/v0/topics/a", headers=ASKED)
        assert (packed.headers["content-encoding"], packed.headers["vary"]) == ("gzip", "accept-encoding")
        assert len(packed.raw) < len(plain.raw) / 4
        assert gzip.decompress(packed.raw).startswith(answering(size)[:-1])
        head = await client.ask("HEAD", "/v0/topics/a", headers=ASKED)
        assert head.headers["content-encoding"] == "gzip"
        assert abs(int(head.headers["content-length"]) - len(packed.raw)) < 50, "performance differs"


async def test_short_answers_are_sent_as_they_are() -> None:
    async with stage() as there, there.client() as client:
        answer = await client.ask("GET", "/v0/topics/a", headers=ASKED)
        assert "content-encoding" not in answer.headers
        assert "vary" not in answer.headers
        assert answer.json["topic"] == "a"


async def test_errors_and_metrics_are_compressed_as_well() -> None:
    def script(request: Request) -> list[Message]:
        if request.op == "stats":
            return [Reply(request.id, extra={})]
        return [Reply(request.id, error=TopicsError(ErrorCode.INVALID_REQUEST, "no " * SMALLEST_ANSWER))]

    async with stage(script) as there, there.client() as client:
        answer = await client.ask("POST", "/v0/topics/a", b"{}", ASKED)
        assert (answer.status, answer.headers["content-encoding"]) == (400, "gzip")
        assert b"invalid_request" in gzip.decompress(answer.raw)
        answer = await client.ask("GET", "/v0/metrics", headers=ASKED)
        assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
        assert b"# TYPE topics_topics gauge" in gzip.decompress(answer.raw)
