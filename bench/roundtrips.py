"""Round trips between two processes through `proto`: a DEALER asks, a ROUTER in another process answers.

Both ends encode and decode real messages, as gateway and shard do, and do nothing else. The result is an upper
bound for one gateway and one shard.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time

import trio

from proto.ipc.message import Reply, Request
from proto.ipc.operations import Append
from proto.ipc.transport import Group, MessageSocket

BODY = b'{"records":[{"data":' + b"x" * 100 + b"}]}"
ANSWER = b'{"topic":"t","first_seq":1,"last_seq":1,"seqs":[1],"head_seq":1,"count":1,"created":false,"deduped":false}'


async def echo(endpoint: str) -> None:
    """Answer every request at once, until killed."""
    router = MessageSocket.router(endpoint)

    def handle(group: Group) -> None:
        for peer, packet in group:
            for request in packet.messages:
                router.send(Reply(request.id, ANSWER, performance={"wal_append_ms": 0.01}), peer)

    print("bound", flush=True)
    await router.read(handle)


async def ask(endpoint: str, in_flight: int, seconds: float) -> float:
    """Round trips per second with a constant number of requests in flight. Raises `trio.TooSlowError`."""
    dealer = MessageSocket.dealer(endpoint)
    answered = sent = 0
    started = time.perf_counter()
    deadline = started + seconds
    finished = trio.Event()

    def send() -> None:
        nonlocal sent
        sent += 1
        dealer.send(Request(sent, Append(), "bench:t", BODY))

    def handle(group: Group) -> None:
        nonlocal answered
        for message in (each for _, packet in group for each in packet.messages):
            assert isinstance(message, Reply), message
            answered += 1
            if time.perf_counter() < deadline:
                send()
            elif answered == sent:
                finished.set()

    with trio.fail_after(seconds + 10):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(dealer.read, handle)
            for _ in range(in_flight):
                send()
            await finished.wait()
            nursery.cancel_scope.cancel()
    elapsed = time.perf_counter() - started
    dealer.close()
    return answered / elapsed


def measure(in_flight: int, seconds: float) -> float:
    """Round trips per second between this process and a new one."""
    with tempfile.TemporaryDirectory(prefix="topics-bench-") as directory:
        endpoint = f"ipc://{directory}/echo.sock"
        peer = subprocess.Popen([sys.executable, __file__, endpoint], stdout=subprocess.PIPE)
        try:
            assert peer.stdout is not None
            if peer.stdout.readline() != b"bound\n":
                raise RuntimeError("the answering process did not start")
            return trio.run(ask, endpoint, in_flight, seconds)
        finally:
            peer.kill()
            peer.communicate()


if __name__ == "__main__":
    trio.run(echo, sys.argv[1])
