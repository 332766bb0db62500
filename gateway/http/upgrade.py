"""The path of the WebSocket, and the refusal of requests for it that are no upgrade.

`websocket` is the transport. It loads wsproto, so it is imported when the first client upgrades.
"""

from __future__ import annotations

from proto.model.errors import TopicsError, invalid

PATH = "/v0/ws"


def not_an_upgrade() -> TopicsError:
    return invalid(f"{PATH} is a WebSocket: connect with an HTTP/1.1 upgrade (Upgrade: websocket)")
