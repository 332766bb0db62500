"""Claims about what a body is read as, and in which order it is refused."""

from __future__ import annotations

import gzip

import pytest

from gateway.api.bodies import MAX_PARAMETERS_BYTES, is_json
from tests.support.gateway_stage import stage

JSON = "application/json"
EMPTY = gzip.compress(b"", mtime=0)


@pytest.mark.parametrize("target", ["/v0/topics/a", "/v0/watch"])
@pytest.mark.parametrize(
    ("body", "content_type", "coding", "code"),
    [
        (b"x" * 3_000_000, "text/plain", "br", "unsupported_media_type"),
        (b"x" * 3_000_000, JSON, "br", "unsupported_media_type"),
        (b"x" * 3_000_000, JSON, "gzip", "payload_too_large"),
        (b"x" * 10, JSON, "gzip", "invalid_request"),
        (EMPTY[:-1], JSON, "gzip", "invalid_request"),
        (EMPTY, JSON, "gzip", "invalid_request"),
        (b"", JSON, "identity", "invalid_request"),
        (gzip.compress(b" " * 2_000_001, mtime=0), JSON, "x-gzip", "payload_too_large"),
    ],
)
async def test_a_body_is_refused_by_its_headers_then_its_size_then_its_content(
    target: str, body: bytes, content_type: str, coding: str, code: str
) -> None:
    async with stage(max_body_bytes=2_000_000) as there, there.client() as client:
        headers = {"Content-Type": content_type, "Content-Encoding": coding}
        assert (await client.ask("POST", target, body, headers)).code == code


async def test_only_a_body_that_the_gateway_parses_or_that_is_compressed_without_records_has_to_be_small() -> None:
    large = b" " * (MAX_PARAMETERS_BYTES + 1)
    packed = {"Content-Encoding": "gzip"}
    async with stage(max_body_bytes=2_000_000) as there:
        for target, plain, compressed in (
            ("/v0/topics/a", 200, 200),
            ("/v0/topics/a/diff", 200, 413),
            ("/v0/watch", 413, 413),
        ):
            async with there.client() as client:
                assert (await client.ask("POST", target, large)).status == plain, target
            async with there.client() as client:
                assert (await client.ask("POST", target, gzip.compress(large), packed)).status == compressed, target


@pytest.mark.parametrize(
    ("content_type", "json"),
    [
        (b"application/json", True),
        (b'Application/JSON; Charset="UTF-8"; x=y', True),
        (b"application/json;charset=latin-1", False),
        (b"application/jsonp", False),
        (b"", False),
    ],
)
def test_a_content_type_is_json_in_utf_8_or_not(content_type: bytes, json: bool) -> None:
    assert is_json(content_type) is json
