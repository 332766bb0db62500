"""Bodies of HTTP/1.1 requests: read whole, asked for, or refused."""

import gzip

from gateway.api.bodies import MAX_PARAMETERS_BYTES
from tests.support.gateway_stage import stage
from tests.unit.gateway.server.test_connection import raw


async def test_bodies_arrive_whole_however_they_are_cut() -> None:
    body = b'{"records":[{"data":"' + b"x" * 300 + b'"}]}'
    plain = (
        b"POST /v0/topics/a HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    )
    chunked = (
        b"POST /v0/topics/a HTTP/1.1\r\nHost: localhost\r\n"
        b"Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
    )
    wires = (
        plain % len(body) + body,
        chunked + b"a\r\n%b\r\n%x\r\n%b\r\n0\r\n\r\n" % (body[:10], len(body) - 10, body[10:]),
    )
    async with stage() as there, there.client() as client:
        for wire in wires:
            for step in (1, 7, 100, len(wire)):
                for at in range(0, len(wire), step):
                    await client.send(wire[at : at + step])
                assert (await client.receive()).status == 200
                assert there.shards[0].requests[-1].body == body


async def test_expect_100_continue_is_answered_before_the_body() -> None:
    async with stage() as there, there.client() as client:
        await client.send(
            b"POST /v0/topics/a HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 2\r\n"
            b"Expect: 100-continue\r\n\r\n"
        )
        assert (await client.receive()).status == 100
        await client.send(b"{}")
        assert (await client.receive()).status == 200


async def test_expect_100_continue_is_not_answered_for_a_refused_body() -> None:
    async with stage(max_body_bytes=1000) as there, there.client() as client:
        await client.send(
            b"POST /v0/topics/a HTTP/1.1\r\nHost: localhost\r\n"
            b"Content-Type: application/json\r\nContent-Length: 2000\r\n"
            b"Expect: 100-continue\r\n\r\n"
        )
        answer = await client.receive()
        assert (answer.status, answer.code) == (413, "payload_too_large")


async def test_413_is_answered_before_the_body_is_read_and_reaches_a_client_that_sends_all_of_it() -> None:
    head = b"POST /v0/topics/a HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    async with stage(max_body_bytes=4 << 20) as there:
        async with there.client() as client:
            await client.send(head + b"Content-Length: %d\r\n\r\n" % ((4 << 20) + 1))
            answer = await client.receive()
            assert (answer.status, answer.code) == (413, "payload_too_large")
            assert answer.headers["connection"] == "close"
            await client.send(b"x" * ((4 << 20) + 1))
            assert await client.ended()
        answer = await raw(there, head + b"Transfer-Encoding: chunked\r\n\r\n400001\r\n")
        assert (answer.status, answer.code) == (413, "payload_too_large")
        assert there.shards[0].requests == []


async def test_a_body_shorter_than_its_length_is_400() -> None:
    async with stage() as there:
        head = b"POST /v0/topics/a HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        for rest in (b"Content-Length: 10\r\n\r\n{}", b"Transfer-Encoding: chunked\r\n\r\n5\r\n{}"):
            answer = await raw(there, head + rest, half_close=True)
            assert (answer.status, answer.code) == (400, "invalid_request")
        assert there.shards[0].requests == []
        assert there.gateway.flight.count == 0


async def test_bytes_beyond_the_body_are_the_next_request() -> None:
    async with stage() as there, there.client() as client:
        await client.send(
            b"POST /v0/topics/a HTTP/1.1\r\nHost: localhost\r\n"
            b"Content-Type: application/json\r\nContent-Length: 2\r\n\r\n{}}}"
        )
        assert (await client.receive()).status == 200
        answer = await client.receive()
        assert (answer.status, answer.code) == (400, "invalid_request")
        assert await client.ended()


async def test_a_compressed_body_of_parameters_or_of_many_members_is_bounded() -> None:
    packed = {"Content-Encoding": "gzip"}
    async with stage() as there, there.client() as client:
        large = gzip.compress(b" " * (MAX_PARAMETERS_BYTES + 1))
        assert (await client.ask("POST", "/v0/topics/a/diff", large, packed)).code == "payload_too_large"
        assert (await client.ask("POST", "/v0/topics/a", large, packed)).status == 200
        assert (await client.ask("POST", "/v0/topics/a", gzip.compress(b"") * 101, packed)).code == "invalid_request"
        assert (await client.ask("POST", "/v0/topics/a", gzip.compress(b""), packed)).code == "invalid_request"
