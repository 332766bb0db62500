"""Claims about the event stream of a session: which topics it has when it is opened again."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.gateway_stage import Client, Stage, stage, until
from tests.support.harness import Harness
from tests.support.real_shard import RealShard, start_real


class Frames:
    """The frames of a stream, one at a time."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.last = ""
        """The last id."""

    async def until(self, event: str, topic: str) -> dict[str, Any]:
        """Read up to a frame of this kind and topic; return its data."""
        while True:
            while b"\n\n" not in self._client.buffer:
                await self._client._more()
            frame, _, self._client.buffer = self._client.buffer.partition(b"\n\n")
            fields = dict(line.split(": ", 1) for line in frame.decode().split("\n") if ": " in line)
            self.last = fields.get("id", self.last)
            if fields.get("event") == event:
                data: dict[str, Any] = json.loads(fields["data"])
                if data["topic"] == topic:
                    return data


async def left(there: Stage) -> None:
    """Wait until no stream is open."""
    await until(lambda: not there.gateway.api.live.streams)


@pytest.mark.parametrize("resumes", [False, True])
@pytest.mark.parametrize("prefix", ["", ',"prefix":"a:"'])
async def test_a_named_topic_that_was_deleted_comes_back_with_or_without_a_prefix(prefix: str, resumes: bool) -> None:
    async with stage() as there:
        harness = Harness()
        harness.append("named", 1, 2, 3)
        harness.append("a:1", 1)
        shard = await start_real(there, harness)
        assert isinstance(shard, RealShard)
        async with there.client() as client:
            body = b'{"topics":{"named":{"from_seq":0}}%b}' % prefix.encode()
            url = (await client.ask("POST", "/v0/watch", body)).json["stream_url"]
        async with there.client() as client:
            assert (await client.ask("GET", url)).status == 200
            frames = Frames(client)
            await frames.until("caught-up", "named")
            harness.call("delete_topic", "named")
            shard.settle()
            await frames.until("topic-deleted", "named")
        await left(there)
        headers = {"Last-Event-ID": frames.last} if resumes else {}
        async with there.client() as client:  # the topic is not there yet
            assert (await client.ask("GET", url, headers=headers)).status == 200
            await until(lambda: any("named" in stream.subscriptions for stream in there.gateway.api.live.streams))
        await left(there)
        harness.append("named", 7)
        shard.settle()
        async with there.client() as client:
            assert (await client.ask("GET", url, headers=headers)).status == 200
            frames = Frames(client)
            record = await frames.until("record", "named")
            assert [each["data"] for each in record["records"]] == [7]
            await frames.until("caught-up", "named")
