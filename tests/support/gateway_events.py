"""An event stream of a gateway in this process, read event by event."""

from __future__ import annotations

import json
from typing import Any

from tests.support.gateway_stage import Client


class Events:
    """An open stream, read event by event."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def next(self) -> tuple[str, Any]:
        """The next event's name and data."""
        while True:
            while b"\n\n" not in self._client.buffer:
                await self._client._more()
            text, _, self._client.buffer = self._client.buffer.partition(b"\n\n")
            fields = dict(line.split(": ", 1) for line in text.decode().splitlines() if ": " in line)
            if "data" in fields:
                return fields["event"], json.loads(fields["data"])

    async def record(self) -> list[Any]:
        while True:
            event, data = await self.next()
            assert event != "error", data
            if event == "record":
                return [each["data"] for each in data["records"]]
