"""Multi-master example: three nodes write and read; each gets the others' records, not its own, and nothing loops.

    python examples/multimaster/nodes.py [--url http://127.0.0.1:4000]

Every node writes to the shared topic `mm:events`, with its id as `node`. Routers copy the topic to an inbox for each
node (`mm:inbox:a`, …). Copies keep their `node`, so a diff that names the reading node leaves out its own records. With
`--ring`, three more topics form a ring of routers with `allow_cycle`: a record circulates for eight hops, and stops.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import urllib.request
from typing import Any

NODES = ("a", "b", "c")
WRITES = 5
PATIENCE_S = 20.0


class Client:
    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(self.url + path, data, headers, method=method)
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.load(answer)


class Node:
    """Node that writes and reads. Its only state is its cursor."""

    def __init__(self, client: Client, prefix: str, name: str) -> None:
        self.client = client
        self.name = name
        self.events = f"{prefix}:events"
        self.inbox = f"{prefix}:inbox:{name}"
        self.cursor = 0
        self.seen: list[Any] = []
        router = {"source": self.events, "dest": self.inbox, "guarantee": "exactly_once"}
        client.ask("PUT", f"/v0/routers/{self.inbox}", router)

    def write(self, data: Any) -> None:
        self.client.ask("POST", f"/v0/topics/{self.events}", {"node": self.name, "records": [{"data": data}]})

    def read(self) -> None:
        """Read the new records of the other nodes."""
        body = {"from_seq": self.cursor, "node": self.name, "wait_ms": 200}
        answer = self.client.ask("POST", f"/v0/topics/{self.inbox}/diff", body)
        self.cursor = answer["next_from_seq"]
        self.seen += [(record["$node"], record["data"]) for record in answer["records"]]


def run(url: str, prefix: str = "mm") -> dict[str, list[Any]]:
    """Let the nodes write in turn and read until each has everything. Returns the records of each: (node, data)."""
    client = Client(url)
    nodes = [Node(client, prefix, name) for name in NODES]
    for number in range(WRITES):
        for node in nodes:
            node.write(f"{node.name} says {number}")
    deadline = time.monotonic() + PATIENCE_S
    wanted = WRITES * (len(nodes) - 1)
    while any(len(node.seen) < wanted for node in nodes) and time.monotonic() < deadline:
        for node in nodes:
            node.read()
    for node in nodes:
        node.read()  # once more: nothing may come after the last record
    return {node.name: node.seen for node in nodes}


def ring(url: str, prefix: str = "mm:ring") -> dict[str, list[Any]]:
    """Write a record to the first of three topics in a ring of routers. Returns the final records of each topic."""
    client = Client(url)
    topics = [f"{prefix}:{name}" for name in NODES]
    for source, dest in zip(topics, [*topics[1:], topics[0]], strict=True):
        client.ask("PUT", f"/v0/routers/{source}-%3E{dest}", {"source": source, "dest": dest, "allow_cycle": True})
    client.ask("POST", f"/v0/topics/{topics[0]}", {"records": [{"data": "round we go"}]})
    deadline = time.monotonic() + PATIENCE_S
    total = 0
    while total < 9 and time.monotonic() < deadline:
        time.sleep(0.05)
        total = sum(client.ask("GET", f"/v0/topics/{topic}")["head_seq"] for topic in topics)
    time.sleep(0.5)
    found = {topic: client.ask("POST", f"/v0/topics/{topic}/diff", {})["records"] for topic in topics}
    return {topic: [record["data"] for record in records] for topic, records in found.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="http://127.0.0.1:4000")
    parser.add_argument("--ring", action="store_true", help="also join three topics to a ring")
    options = parser.parse_args()
    failed = False
    for name, seen in run(options.url).items():
        own = [data for node, data in seen if node == name]
        twice = len(seen) - len(set(seen))
        failed = failed or bool(own) or bool(twice)
        sys.stdout.write(f"node {name} has seen {len(seen)} records of others, {len(own)} of its own, {twice} twice\n")
    if options.ring:
        for topic, records in ring(options.url).items():
            sys.stdout.write(f"{topic} holds {len(records)} records\n")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
