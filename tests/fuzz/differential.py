"""The same random requests to two services, one of another checkout: `python -m tests.fuzz.differential --other DIR`.

Statuses, headers and bodies must be equal, but for what varies from run to run (`tests.fuzz.conversations`) and for the
members that `--but NAME` names, which were changed on purpose: what differs in them alone is counted apart. Half of the
conversations are with keys. The exit status is 1 if an answer differs.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

from tests.fuzz.conversations import KEYS, Answer, Conversation, Group, Writer, answers, without

ROOT = Path(__file__).parents[2]
LONG = 40
"""Requests of a conversation."""
MOST_SHOWN, MOST_CHARS = 10, 1000
PATIENCE_S = 60.0


@contextmanager
def service(checkout: Path, *, keyed: bool) -> Iterator[int]:
    """Run the service of a checkout from its own environment. Yields its port."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = int(probe.getsockname()[1])
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("TOPICS_", "PYTHON"))}
    environment["TOPICS_MAX_BODY_BYTES"] = "65536"
    if keyed:
        environment["TOPICS_API_KEYS"] = KEYS
    with tempfile.TemporaryDirectory(prefix="differential-") as directory:
        command = [str(checkout / ".venv/bin/python"), "-m", "supervisor.cli", "serve", "--port", str(port)]
        command += ["--host", "127.0.0.1", "--data-dir", f"{directory}/data", "--shards", "2"]
        with Path(directory, "log").open("wb") as log:
            process = subprocess.Popen(
                command, cwd=checkout, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        try:
            _wait_until_ready(port, process)
            yield port
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(30)


def _wait_until_ready(port: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    ask = b"GET /v0/ready HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    while time.monotonic() < deadline and process.poll() is None:
        try:
            if talk(port, [Group([ask], [b"GET"])])[0].status == 200:
                return
        except (OSError, IndexError):
            pass
        time.sleep(0.05)
    raise SystemExit(f"the service of {process.args!r} is not ready")


def talk(port: int, conversation: Conversation) -> list[Answer]:
    """Have a conversation on one connection and return the answers."""
    found: list[Answer] = []
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as raw:
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for group in conversation:
            received = b""
            part: list[Answer] = []
            whole = False
            try:
                for piece in group.pieces:
                    raw.sendall(piece)
                while not whole and (data := raw.recv(1 << 16)):
                    received += data
                    part, whole = answers(received, group.methods)
            except ConnectionError:
                pass
            found += part
            if not whole:
                break  # the service has ended the connection
    return found


def tell(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


class Comparison:
    """Has conversations with the services of both checkouts, and counts those that they answer differently."""

    def __init__(self, checkouts: list[Path], but: str) -> None:
        self._checkouts = checkouts
        self._but = but
        self.different = 0
        self.different_but = 0
        """Those that differ in the named members alone."""

    def run(self, requests: int, seed: int, *, keyed: bool) -> None:
        with ExitStack() as stack:
            ports = [stack.enter_context(service(each, keyed=keyed)) for each in self._checkouts]
            pool = stack.enter_context(ThreadPoolExecutor(len(ports)))
            for number in range(seed, seed + -(-requests // LONG)):
                made = Writer(number, keyed=keyed).conversation(LONG)
                self._compare(
                    f"conversation {number}, keyed={keyed}", *pool.map(partial(talk, conversation=made), ports)
                )

    def _compare(self, name: str, ours: list[Answer], theirs: list[Answer]) -> None:
        if ours == theirs:
            return
        if self._but and self._cut(ours) == self._cut(theirs):
            self.different_but += 1
            return
        self.different += 1
        if self.different <= MOST_SHOWN:
            ours, theirs = self._cut(ours), self._cut(theirs)
            pairs = zip(ours, theirs, strict=False)
            at = next((n for n, (a, b) in enumerate(pairs) if a != b), min(len(ours), len(theirs)))
            tell(f"{name}, answer {at}")
            tell(f"  this:  {ours[at : at + 1]}"[:MOST_CHARS])
            tell(f"  other: {theirs[at : at + 1]}"[:MOST_CHARS])

    def _cut(self, found: list[Answer]) -> list[Answer]:
        return [replace(each, body=without(each.body, self._but)) for each in found] if self._but else found


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--other", type=Path, required=True, help="checkout with a .venv of its own")
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--but", default="", help="name of the members of answers that were changed on purpose")
    options = parser.parse_args()
    tell(f"seed {options.seed}")
    comparison = Comparison([ROOT, options.other.resolve()], options.but)
    for keyed in (False, True):
        comparison.run(options.requests // 2, options.seed, keyed=keyed)
    apart = f", and {comparison.different_but} in `{options.but}` alone" if options.but else ""
    tell(f"{options.requests} requests, {comparison.different} conversations differ{apart}")
    return 1 if comparison.different else 0


if __name__ == "__main__":
    sys.exit(main())
