"""Direct: requests of a topic go to the machine that holds it, as the answers of the others name it.

    an answer has `topics-holder`                  later requests of its topic go to that URL
    no answer from there, 401, 403, 5xx            they go to the client's own URL again

A holder is followed only with the scheme of the client's own URL: its token never leaves an encrypted connection.
"""

from __future__ import annotations

import re

import httpx

HEADER = "topics-holder"
MOST = 1024
"""Topics whose holder is remembered."""
_TOPICS = "/v0/topics/"
_URL = re.compile(r"(?P<scheme>https?)://([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(:(?P<port>\d{1,5}))?/?")
_LOST = frozenset({401, 403})


class Direct:
    def __init__(self, scheme: str) -> None:
        self._scheme = scheme
        self._holders: dict[str, str] = {}

    def target(self, path: str) -> str:
        """The path, or its URL at the machine that holds its topic, if that is known."""
        return self._holders.get(_topic(path), "") + path

    def heard(self, path: str, response: httpx.Response) -> None:
        topic, holder = _topic(path), response.headers.get(HEADER)
        if response.status_code >= 500 or response.status_code in _LOST:
            self._holders.pop(topic, None)
        elif holder is not None and topic and self._followed(holder):
            self._holders.pop(topic, None)
            self._holders[topic] = holder.rstrip("/")
            if len(self._holders) > MOST:
                del self._holders[next(iter(self._holders))]

    def lost(self, path: str) -> None:
        """There was no answer."""
        self._holders.pop(_topic(path), None)

    def _followed(self, holder: str) -> bool:
        found = _URL.fullmatch(holder)
        return found is not None and found["scheme"] == self._scheme and int(found["port"] or 0) < 65536


def _topic(path: str) -> str:
    """The topic in a path, as it is there; "" if there is none."""
    return path.removeprefix(_TOPICS).partition("/")[0].partition("?")[0] if path.startswith(_TOPICS) else ""
