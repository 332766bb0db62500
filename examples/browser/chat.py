"""A chat in the browser: rooms with history, live messages, and the names of those who are here.

    make chat

There is no program behind the page: each room is a topic, `chat:<room>`, that pages read, watch and write. Their key
may read and write topics of this prefix, and nothing else. That someone is here is a record that lives for seconds.
"""

from __future__ import annotations

import secrets

from pages import arguments, serve, wait

from topics_client import Client

WELCOME = {"chat:lobby": "Welcome. Open this page in a second browser.", "chat:cooking": "What is for dinner?"}


def main() -> None:
    asked = arguments(__doc__.partition("\n")[0]).parse_args()
    settings = {}
    admin = asked.key
    if not asked.url:
        admin, asked.key = secrets.token_urlsafe(24), secrets.token_urlsafe(24)
        settings["TOPICS_API_KEYS"] = f"{admin},{asked.key}:read+write:chat:"
    with serve("chat.html", asked, **settings) as site, Client(site.url, token=admin) as client:
        for room, text in WELCOME.items():
            client.publish(room, {"name": "chat", "text": text}, idempotency_key="welcome")
        client.configure("chat:here:", ttl_ms=15_000, durability="ephemeral")
        site.open()
        wait()


if __name__ == "__main__":
    main()
